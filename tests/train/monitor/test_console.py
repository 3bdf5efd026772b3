"""What the screen shows: lines in a log, a bar in a terminal."""

import io

from rich.console import Console

from jzero.train.monitor import ConsoleView

METRICS = {
    "loss": 2.5,
    "learning_rate": 1e-3,
    "grad_norm": float("inf"),
    "loss_scale": 65536.0,
    "skipped_steps": 2.0,
    "tokens_per_second": 12345.6,
    "perplexity": 12.0,
}


def run(terminal: bool) -> str:
    out = io.StringIO()
    view = ConsoleView(Console(file=out, force_terminal=terminal, width=160, color_system=None), total=4, every=2)
    for step in (1, 2, 3, 4):
        view.write(step, {**METRICS, "loss": 2.0 + step})
        if step == 3:
            view.write(step, {"validation_loss": 3.25})
    view.close()
    return out.getvalue()


def test_a_log_has_the_due_lines_and_no_bar():
    assert run(terminal=False).splitlines() == [
        "step     2  loss 4.0000 · lr 1.00e-03 · grad norm inf · loss scale 65536 · skipped 2 · 12,346 tok/s",
        "step     3  validation 3.2500",
        "step     4  loss 6.0000 · lr 1.00e-03 · grad norm inf · loss scale 65536 · skipped 2 · 12,346 tok/s",
    ]


def test_a_terminal_has_a_bar_with_the_latest_figures_under_it():
    lines = run(terminal=True).splitlines()
    bar = max(i for i, line in enumerate(lines) if "4/4" in line)
    assert (
        "loss 6.0000 · validation 3.2500 · lr 1.00e-03 · grad norm inf · loss scale 65536 · skipped 2" in lines[bar + 1]
    )
