"""The live view of a run: a progress bar with the current figures under it, and a line for each logged step.

Where the output is no terminal, in a log file or a pipe, only the lines are printed.
"""

import math
from collections.abc import Iterable, Mapping

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from jzero.base.terminal import escape

_FORMATS = {
    "loss": "loss {:.4f}",
    "validation_loss": "validation {:.4f}",
    "learning_rate": "lr {:.2e}",
    "grad_norm": "grad norm {:.3f}",
    "loss_scale": "loss scale {:g}",
    "skipped_steps": "skipped {:.0f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "samples_per_second": "{:,.1f} samples/s",
    "mfu": "MFU {:.1%}",
}


class ConsoleView:
    """Shows the progress of a run.

    Args:
        console: where to print.
        total: steps of the whole run.
        start: steps already taken, by the run that this one resumes.
        every: print a lasting line every so many steps; validation losses are printed whenever there is one.
        first: print one for the first step too.
    """

    def __init__(self, console: Console, *, total: int, start: int = 0, every: int = 10, first: bool = False):
        self._console = console
        self._total = total
        self._every, self._first = every, first
        self._shown: dict[str, float] = {}
        self._bar = _BarWithFigures(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=start, figures="compiling the first step ...")
        self._bar.start()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Updates the bar; prints a line if it is due."""
        self._shown |= metrics
        due = step % self._every == 0 or step == self._total or (self._first and step == 1)
        if "validation_loss" in metrics or due:
            self._console.print(f"step {step:>5}  {escape(describe(metrics))}", highlight=False, soft_wrap=True)
        self._bar.update(self._task, completed=step, figures=describe(self._shown))

    def close(self) -> None:
        """Leaves the bar as it is on the screen."""
        self._bar.stop()


class _BarWithFigures(Progress):
    """A progress bar with a line of figures under it, which is wider than what fits beside it."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["figures"])


def describe(metrics: Mapping[str, float]) -> str:
    """The figures of a step in words.

    Args:
        metrics: the figures; those without a known format are left to `metrics.jsonl`.

    Example:
        >>> describe({"loss": 2.5, "learning_rate": 1e-3, "skipped_steps": 0.0})
        'loss 2.5000 · lr 1.00e-03 · skipped 0'
    """
    return " · ".join(
        _FORMATS[name].format(metrics[name])
        if math.isfinite(metrics[name])
        else f"{name.replace('_', ' ')} {metrics[name]}"
        for name in _FORMATS
        if name in metrics
    )
