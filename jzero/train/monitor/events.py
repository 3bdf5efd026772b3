"""The sections `tensorboard` and `csv_monitor`: a run's figures under DeepSpeed's event names, over the samples seen.

Scripts and dashboards that read what DeepSpeed writes read these files too: the events are called
`Train/Samples/train_loss`, `Train/Samples/lr`, `Train/Samples/loss_scale` and so on, and their horizontal axis counts
samples, not steps.
"""

import csv
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.train.monitor.metrics import MetricWriter

_EVENTS = {
    "loss": "Train/Samples/train_loss",
    "learning_rate": "Train/Samples/lr",
    "validation_loss": "Validation/Samples/loss",
}


def event(name: str) -> str:
    """The event of a metric.

    >>> event("loss"), event("grad_norm")
    ('Train/Samples/train_loss', 'Train/Samples/grad_norm')
    """
    return _EVENTS.get(name, f"Train/Samples/{name}")


def event_writers(config: Config, output_dir: Path, *, resume_at: int | None = None) -> list[MetricWriter]:
    """The writers that a configuration's `tensorboard` and `csv_monitor` switch on.

    Args:
        config: a resolved configuration.
        output_dir: of the run; a section without an `output_path` writes into a folder of its own name there.
        resume_at: forget events of steps after this one, which a resumed run takes again; None starts anew.

    Returns:
        The writers, each of which takes `write(step, metrics)` with a dict of floats, and `close()`.

    Raises:
        ConfigError: a folder cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> config = Config.load({"train_batch_size": 8, "csv_monitor": {"enabled": True, "job_name": "run"}})
        >>> (writer,) = event_writers(config, folder)
        >>> writer.write(1, {"loss": 2.5})
        >>> (folder / "csv_monitor" / "run" / "Train_Samples_train_loss.csv").read_text().split()
        ['step,train_loss', '8,2.5']
    """
    writers: list[MetricWriter] = []
    kinds = {"tensorboard": TensorBoardEvents, "csv_monitor": CsvEvents}
    for name, kind in kinds.items():
        section = getattr(config, name)
        if section is not None and section.enabled is True:
            folder = Path(section.output_path or output_dir / name, section.job_name)
            try:
                writers.append(kind(folder, config.train_batch_size, resume_at=resume_at))
            except OSError as error:
                raise ConfigError(f"{name}.output_path: cannot write {folder}: {error.strerror}.") from None
    return writers


class TensorBoardEvents:
    """Writes an event file for TensorBoard.

    Args:
        folder: where; made as needed. Files of earlier runs stay, as TensorBoard expects.
        samples_per_step: `train_batch_size`.
        resume_at: TensorBoard forgets events of steps after this one; None keeps everything.
    """

    def __init__(self, folder: Path, samples_per_step: int, *, resume_at: int | None = None):
        from tensorboardX import SummaryWriter  # here, because it looks for half a dozen services when imported

        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # an infinite norm is a figure like others
        folder.mkdir(parents=True, exist_ok=True)
        purge = None if resume_at is None else resume_at * samples_per_step + 1
        suffix = "" if resume_at is None else f".{resume_at}"  # names hold seconds: a quick restart would overwrite
        self._writer = SummaryWriter(str(folder), purge_step=purge, filename_suffix=suffix)
        self._samples_per_step = samples_per_step

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes an event for each figure."""
        for name, value in metrics.items():
            self._writer.add_scalar(event(name), value, step * self._samples_per_step)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self._writer.close()


class CsvEvents:
    """Writes one CSV file for each figure: `Train_Samples_train_loss.csv` with the columns `step` and `train_loss`.

    As in DeepSpeed, the column `step` holds samples.

    Args:
        folder: where; made as needed.
        samples_per_step: `train_batch_size`.
        resume_at: drop rows of steps after this one; None drops all files of an earlier run.
    """

    def __init__(self, folder: Path, samples_per_step: int, *, resume_at: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._samples_per_step = folder, samples_per_step
        for file in folder.glob("*_Samples_*.csv"):
            kept = [] if resume_at is None else _rows_up_to(file, resume_at * samples_per_step)
            file.write_text("".join(kept))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a row to the file of each figure; each is complete as soon as it is written."""
        for name, value in metrics.items():
            file = self._folder / f"{event(name).replace('/', '_')}.csv"
            is_new = not file.exists() or not file.stat().st_size
            with file.open("a", newline="") as stream:
                rows = csv.writer(stream, lineterminator="\n")
                if is_new:
                    rows.writerow(["step", event(name).rpartition("/")[2]])
                rows.writerow([step * self._samples_per_step, value])

    def close(self) -> None:
        """Nothing stays open."""


def _rows_up_to(file: Path, samples: int) -> list[str]:
    """The header, and the rows up to a number of samples; nothing counts from a row on that a crash has cut off."""
    header, *rows = file.read_text(errors="replace").splitlines(keepends=True) or [""]
    if not header.endswith("\n"):
        return []
    numbers = [row.partition(",")[0] for row in rows]
    whole = list(itertools.takewhile(lambda at: numbers[at].isdecimal() and rows[at].endswith("\n"), range(len(rows))))
    return [header, *(rows[at] for at in whole if int(numbers[at]) <= samples)]
