"""The files of `tensorboard` and `csv_monitor`, read back by TensorBoard's own reader of records and by csv."""

import csv
import math
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.train.monitor import event_writers

STEPS = [{"loss": 4.0, "learning_rate": 0.5}, {"loss": 3.0, "grad_norm": math.inf, "validation_loss": 2.5}]


def write(folder: Path, steps=STEPS, first=1, resume_at=None, **keys) -> Path:
    """Writes steps of 8 samples, and returns the folder of the events."""
    sections = {name: {"enabled": True, "job_name": "job", **keys} for name in ("tensorboard", "csv_monitor")}
    config = Config.load({"train_batch_size": 8, **sections}).resolve(world=8)
    writers = event_writers(config, folder, resume_at=resume_at)
    for step, metrics in enumerate(steps, first):
        for writer in writers:
            writer.write(step, metrics)
    for writer in writers:
        writer.close()
    return folder


def tables(folder: Path) -> dict[str, list[list[str]]]:
    return {path.name: list(csv.reader(path.read_text().splitlines())) for path in folder.glob("*.csv")}


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """The scalars of all event files: records of a length, 4 bytes, the event and 4 bytes."""
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (n,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + n]), data[16 + n :]
            if event.HasField("session_log"):
                found = [row for row in found if row[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


EVENTS = [
    ("Train/Samples/train_loss", 8, 4.0),
    ("Train/Samples/lr", 8, 0.5),
    ("Train/Samples/train_loss", 16, 3.0),
    ("Train/Samples/grad_norm", 16, math.inf),
    ("Validation/Samples/loss", 16, 2.5),
]


def test_figures_lie_under_deepspeeds_names_over_samples(tmp_path):
    write(tmp_path)
    assert tables(tmp_path / "csv_monitor" / "job") == {
        "Train_Samples_train_loss.csv": [["step", "train_loss"], ["8", "4.0"], ["16", "3.0"]],
        "Train_Samples_lr.csv": [["step", "lr"], ["8", "0.5"]],
        "Train_Samples_grad_norm.csv": [["step", "grad_norm"], ["16", "inf"]],
        "Validation_Samples_loss.csv": [["step", "loss"], ["16", "2.5"]],
    }
    assert scalars(tmp_path / "tensorboard" / "job") == EVENTS


def test_a_resumed_run_replaces_what_it_takes_again(tmp_path):
    write(tmp_path)
    write(tmp_path, [{"loss": 1.0}], first=2, resume_at=1)
    losses = tables(tmp_path / "csv_monitor" / "job")["Train_Samples_train_loss.csv"]
    assert losses == [["step", "train_loss"], ["8", "4.0"], ["16", "1.0"]]
    assert scalars(tmp_path / "tensorboard" / "job") == [*EVENTS[:2], ("Train/Samples/train_loss", 16, 1.0)]


@pytest.mark.parametrize(
    ("cut", "kept"),
    [("8,4.0\n16,3.", ["8"]), ("8,4.0\n1", ["8"]), ("8,4.0\nx,1\n16,3.0\n", ["8"]), ("\0\udcff\n8,4.0\n", [])],
)
def test_nothing_counts_from_a_row_on_that_a_crash_has_cut_off(tmp_path, cut, kept):
    file = tmp_path / "csv_monitor" / "job" / "Train_Samples_train_loss.csv"
    file.parent.mkdir(parents=True)
    file.write_text(f"step,train_loss\n{cut}", errors="surrogateescape")
    write(tmp_path, [{"loss": 1.0}], first=3, resume_at=2)
    assert [row[0] for row in tables(file.parent)[file.name]] == ["step", *kept, "24"]


def test_a_new_run_starts_new_tables(tmp_path):
    write(tmp_path)
    write(tmp_path, [{"loss": 1.0}], output_path=str(tmp_path / "csv_monitor"))
    filled = {name: rows for name, rows in tables(tmp_path / "csv_monitor" / "job").items() if rows}
    assert filled == {"Train_Samples_train_loss.csv": [["step", "train_loss"], ["8", "1.0"]]}


@pytest.mark.parametrize("keys", [{"enabled": False}, {"enabled": False, "output_path": "elsewhere"}])
def test_switched_off_nothing_is_written(tmp_path, keys):
    assert list(write(tmp_path, **keys).iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError) as error:
        write(tmp_path, output_path=str(file))
    assert str(error.value) == f"tensorboard.output_path: cannot write {file / 'job'}: Not a directory."
