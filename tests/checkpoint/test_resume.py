"""`jzero train` goes on: from the newest checkpoint, after a signal, with other devices, batches and layer forms."""

import io
import json
import signal
import threading
import time

import jax
import numpy as np
import pytest
from rich.console import Console

from jzero.checkpoint import read_header
from jzero.checkpoint.run import place
from jzero.config import load_run
from jzero.errors import CheckpointError, ConfigError
from jzero.sharding.mesh import make_mesh
from jzero.train.data import load_corpus, prefetch
from jzero.train.trainer import Run, prepare, train
from jzero.train.watchdog import Watchdog

WHEN = ("training_arguments.max_steps", "training_arguments.save")
"""Overrides that change no program."""

RUN = {
    "model": {"family": "gpt", "vocab_size": 256, "seq_len": 8, "d_model": 8, "n_layer": 2, "n_head": 2},
    "data": {"source": "text", "files": ["text.txt"], "seq_len": 8, "validation_share": 0.2},
    "training_arguments": {"max_steps": 6, "learning_rate": 0.01, "per_device_train_batch_size": 4, "save_steps": 2},
    "deepspeed": {"zero_optimization": {"stage": 2}, "jzero": {"checkpoint": {"save_minutes": 60, "keep_every": 4}}},
}


@pytest.fixture
def in_turn(monkeypatch):
    """Each batch is made in the step that takes it."""
    monkeypatch.setattr(prefetch, "AHEAD", 0)


def console() -> Console:
    return Console(file=io.StringIO(), width=1000)


def said(to: Console) -> list[str]:
    return to.file.getvalue().splitlines()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A function that prepares the run above on some devices, with overrides, writing to a folder."""
    folder, runs = tmp_path_factory.mktemp("run"), {}
    (folder / "text.txt").write_text("".join(f"{i} squared is {i * i}. " for i in range(400)))
    (folder / "run.json").write_text(json.dumps(RUN))

    def make(out, *overrides, n_devices=2):
        config = load_run(folder / "run.json", [*overrides, f"training_arguments.output_dir={out}"])
        arguments = config.training_arguments
        key = (*[o for o in overrides if not o.startswith(WHEN)], n_devices)
        if key not in runs:  # compiled once
            runs[key] = prepare(config, base=folder, mesh=make_mesh(jax.devices()[:n_devices]))
        engine, corpus = runs[key].engine, load_corpus(config.data, base=folder, seed=arguments.seed)
        engine.state = engine.functional.init(np.uint32(arguments.seed))
        return Run(engine, corpus, arguments.max_steps, config)

    return make


def losses(out) -> dict[int, float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """What an uninterrupted run wrote."""
    out = tmp_path_factory.mktemp("whole")
    train(prepared(out, "training_arguments.save_total_limit=1"))
    return out


def test_auto_starts_anew_goes_on_and_passes_damage_over(prepared, whole, tmp_path):
    shown = console()
    result = train(prepared(tmp_path, "training_arguments.max_steps=4"), resume="auto", console=shown)
    assert f"No checkpoint in {tmp_path} yet: a new run." in said(shown)
    assert (result.step, result.checkpoint) == (4, tmp_path / "checkpoint-4")
    manifest = tmp_path / "checkpoint-4" / "arrays" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    train(prepared(tmp_path), resume="auto", console=shown)
    assert any("checkpoint-4 is damaged: arrays/manifest.ocdbt is" in line for line in said(shown))
    assert f"Going on from {tmp_path / 'checkpoint-2'}, after step 2." in said(shown)
    assert losses(tmp_path) == losses(whole)
    with pytest.raises(
        ConfigError, match=r"checkpoint-6 is already at step 6 of 6; raise training_arguments\.max_steps"
    ):
        train(prepared(tmp_path), resume="auto")


def test_checkpoints_are_kept_as_asked(whole):
    assert [step for step, _ in place.complete_in(whole)] == [4, 6]
    _, header = read_header(whole)
    extra = header.metadata["extra"]
    assert extra.pop("run") == json.loads((whole / "jzero-run.json").read_text())["run"]
    assert len(extra.pop("text")) == 33
    assert extra == {
        **{"next_batch": 6, "rows": 8, "seq_len": 8, "seed": 42, "n_steps": 6, "learning_rate": 0.0},
        "windows": 862,
        "model": RUN["model"],
    }


def test_a_folder_stands_for_its_newest_and_an_empty_one_for_none(prepared, whole, tmp_path):
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        train(prepared(tmp_path / "out"), resume=tmp_path)
    result = train(prepared(tmp_path / "out", "training_arguments.max_steps=7"), resume=whole)
    assert result.step == 7
    assert list(losses(tmp_path / "out")) == [7]


def test_a_run_goes_on_with_other_devices_and_scanned_layers(prepared, whole, tmp_path):
    run = prepared(
        tmp_path,
        "training_arguments.per_device_train_batch_size=2",
        "model.scan_layers=true",
        "deepspeed.zero_optimization.stage=3",
        n_devices=4,
    )
    train(run, resume=whole / "checkpoint-4")
    after = {step: loss for step, loss in losses(whole).items() if step > 4}
    assert losses(tmp_path) == pytest.approx(after, rel=1e-4)


def test_every_line_of_the_metrics_and_every_checkpoint_name_the_run(prepared, whole, tmp_path):
    train(prepared(tmp_path, "training_arguments.max_steps=2"))
    train(prepared(tmp_path), resume="auto")
    (run,) = {json.loads(line)["run"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()}
    names = {path.name: read_header(path)[1].metadata["extra"]["run"] for _, path in place.complete_in(tmp_path)}
    assert names == dict.fromkeys(("checkpoint-2", "checkpoint-4", "checkpoint-6"), run)
    assert run != read_header(whole)[1].metadata["extra"]["run"]


def test_a_new_run_where_another_one_is_must_be_told_to_overwrite(prepared, tmp_path):
    train(prepared(tmp_path))
    before = read_header(tmp_path)[1].metadata["extra"]["run"]
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another run \(checkpoint-2, .*checkpoint-6\)"):
        train(prepared(tmp_path, "training_arguments.max_steps=2"))
    assert [step for step, _ in place.complete_in(tmp_path)] == [2, 4, 6]
    assert list(losses(tmp_path)) == [1, 2, 3, 4, 5, 6]
    shown = console()
    train(prepared(tmp_path, "training_arguments.max_steps=2"), overwrite=True, console=shown)
    assert [step for step, _ in place.complete_in(tmp_path)] == [2]
    assert read_header(tmp_path)[1].metadata["extra"]["run"] != before
    assert any(line.startswith("Removed what an earlier run left in ") for line in said(shown))


def test_another_length_is_said_with_both_learning_rates(prepared, whole, tmp_path):
    shown = console()
    train(prepared(tmp_path, "training_arguments.max_steps=5"), resume=whole / "checkpoint-4", console=shown)
    words = "The run has 5 steps (training_arguments.max_steps) and had 6: the next step has the learning rate "
    assert any(line.startswith(words) for line in said(shown))


def test_a_sigterm_in_an_evaluation_leaves_it_and_saves(prepared, whole, tmp_path):
    run, shown = prepared(tmp_path, "training_arguments.eval_steps=2"), console()
    batch, taken = run.corpus.validation.batch, []

    def batch_with_sigterm(index, *args, **kwargs):
        taken.append(index)
        signal.raise_signal(signal.SIGTERM)
        return batch(index, *args, **kwargs)

    run.corpus.validation.batch = batch_with_sigterm
    result = train(run, console=shown)
    assert (result.step, result.interrupted, result.signal) == (2, True, signal.SIGTERM)
    assert taken == [0]
    assert "validation_loss" not in result.metrics
    assert [step for step, _ in place.complete_in(tmp_path)] == [2]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_batch_that_never_comes_is_noticed_with_its_step(in_turn, prepared, tmp_path, monkeypatch):
    run, told, gone = prepared(tmp_path, "training_arguments.max_steps=4"), [], threading.Event()
    batch = run.corpus.train.batch

    def noticed(sentence):
        told.append(sentence)
        gone.set()

    def watchdog(least, process):
        assert (least, process) == (300, 0)
        return Watchdog(0.5, process, end=noticed)

    def late_batch(index, *args, **kwargs):
        if index == 2:
            assert gone.wait(60)
        return batch(index, *args, **kwargs)

    monkeypatch.setattr("jzero.train.trainer.Watchdog", watchdog)
    run.corpus.train.batch = late_batch
    train(run)
    (sentence,) = told
    assert " at step 3, waiting for a batch, " in sentence


def test_before_the_first_step_a_sigterm_is_left_to_end_the_process(in_turn, prepared, tmp_path):
    run, handlers = prepared(tmp_path, "training_arguments.max_steps=2"), []
    batch = run.corpus.train.batch

    def noted(index, *args, **kwargs):
        handlers.append(signal.getsignal(signal.SIGTERM))
        return batch(index, *args, **kwargs)

    run.corpus.train.batch = noted
    train(run)
    assert [handler is signal.SIG_DFL for handler in handlers] == [True, False]


def test_a_schedulers_sigterm_stops_and_saves(in_turn, prepared, whole, tmp_path):
    run, shown = prepared(tmp_path), console()
    batch = run.corpus.train.batch

    def batch_with_sigterm(index, *args, **kwargs):
        if index == 2:
            signal.raise_signal(signal.SIGTERM)
        return batch(index, *args, **kwargs)

    run.corpus.train.batch = batch_with_sigterm
    result = train(run, console=shown)
    assert (result.step, result.interrupted, result.signal) == (3, True, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert "Stopping after this step and saving; a second signal ends it now." in said(shown)
    train(prepared(tmp_path), resume="auto")
    assert losses(tmp_path) == losses(whole)


def test_minutes_ask_for_a_save(in_turn, prepared, tmp_path, monkeypatch):
    run = prepared(tmp_path, "training_arguments.save_steps=100")
    batch, skipped, clock = run.corpus.train.batch, [0.0], time.monotonic

    def batch_that_takes_an_hour(index, *args, **kwargs):
        skipped[0] += 3600 * (index == 1)
        return batch(index, *args, **kwargs)

    run.corpus.train.batch = batch_that_takes_an_hour
    monkeypatch.setattr("jzero.checkpoint.run.folder.time.monotonic", lambda: clock() + skipped[0])
    train(run)
    assert [step for step, _ in place.complete_in(tmp_path)] == [2, 6]


def test_a_failed_save_is_told_and_training_goes_on(prepared, tmp_path):
    run, shown = prepared(tmp_path), console()
    (tmp_path / "checkpoint-2").write_text("in the way")
    train(run, console=shown)
    told = [
        line for line in said(shown) if "checkpoint-2 already exists and is not a checkpoint; it is left alone" in line
    ]
    assert len(told) == 1
    assert [step for step, _ in place.complete_in(tmp_path)] == [4, 6]


def test_metrics_that_cannot_be_written_do_not_stop_training(prepared, tmp_path, monkeypatch):
    def full(self, step, metrics):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jzero.train.monitor.JsonLines.write", full)
    shown = console()
    assert train(prepared(tmp_path), console=shown).step == 6
    assert said(shown).count("Metrics cannot be written: No space left on device; training goes on.") == 1


def test_weights_of_a_checkpoint_begin_a_new_run(prepared, whole, tmp_path):
    train(prepared(tmp_path, "training_arguments.max_steps=1"), weights=whole)
    first = losses(tmp_path)
    assert list(first) == [1]
    assert first[1] != losses(whole)[1]
    assert first[1] < losses(whole)[1]
