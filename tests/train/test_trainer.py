"""The training loop: what it records, where it stops, and that a resumed run is the same run."""

import io
import json
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from rich.console import Console

from jzero.config import load_run
from jzero.errors import CheckpointError, ConfigError
from jzero.sharding.mesh import make_mesh
from jzero.train.data import prefetch
from jzero.train.trainer import Run, describe, prepare, train

RUN = {
    "model": {
        "family": "gpt",
        "vocab_size": 256,
        "seq_len": 16,
        "d_model": 16,
        "n_layer": 1,
        "n_head": 2,
        "dropout": 0.1,
    },
    "data": {"source": "text", "files": ["text.txt"], "seq_len": 16, "validation_share": 0.2},
    "training_arguments": {
        "max_steps": 6,
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "eval_steps": 2,
    },
    "deepspeed": {"zero_optimization": {"stage": 2}},
}


@pytest.fixture
def make_run(tmp_path: Path):
    """Returns a function that prepares the run above, with overrides, writing to a folder of its own."""
    (tmp_path / "text.txt").write_text("".join(f"{i} squared is {i * i}. " for i in range(400)))
    (tmp_path / "run.json").write_text(json.dumps(RUN))

    def make(*overrides: str, out: str = "out") -> Run:
        overrides = (*overrides, f"training_arguments.output_dir={tmp_path / out}")
        return prepare(load_run(tmp_path / "run.json", overrides), base=tmp_path, mesh=make_mesh(jax.devices()[:2]))

    return make


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_step_is_recorded_and_evaluated_on_time(make_run, tmp_path):
    result = train(make_run())
    training = [line for line in lines(tmp_path / "out") if "loss" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines(tmp_path / "out") if "validation_loss" in line] == [2, 4, 6]
    assert [line["learning_rate"] for line in training] == pytest.approx([0, 0.005, 0.01, 0.0075, 0.005, 0.0025])
    assert training[-1]["loss"] < training[0]["loss"]
    assert {
        "grad_norm",
        "loss_scale",
        "skipped_steps",
        "tokens_per_second",
        "step_seconds",
        "data_seconds",
    } <= training[-1].keys()
    assert (result.step, result.interrupted) == (6, False)
    assert result.checkpoint.is_dir()
    assert result.metrics["validation_loss"] < 5.5


def test_a_resumed_run_is_the_same_run(make_run, tmp_path):
    run = make_run("training_arguments.save_steps=3")
    train(run)
    whole = lines(tmp_path / "out")
    train(run, resume=tmp_path / "out" / "checkpoint-3")
    resumed = lines(tmp_path / "out")
    timed = ("tokens_per_second", "step_seconds", "model_tflops_per_device", "data_seconds")
    timeless = lambda line: {name: value for name, value in line.items() if name not in timed}
    assert list(map(timeless, resumed)) == list(map(timeless, whole))


def test_ctrl_c_stops_after_the_step_and_saves(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "AHEAD", 0)  # so that a batch is made in the step that takes it
    run = make_run()
    batch = run.corpus.train.batch

    def batch_with_ctrl_c(index, *args, **kwargs):
        if index == 2:
            signal.raise_signal(signal.SIGINT)
        return batch(index, *args, **kwargs)

    run.corpus.train.batch = batch_with_ctrl_c
    handler = signal.getsignal(signal.SIGINT)
    result = train(run)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (result.step, result.interrupted) == (3, True)
    assert [line["step"] for line in lines(tmp_path / "out") if "loss" in line] == [1, 2, 3]
    assert train(run, resume=result.checkpoint).step == 6


@pytest.mark.parametrize(
    "model",
    [
        '{"family": "lstm", "vocab_size": 256, "d_model": 16, "n_layer": 1}',
        '{"family": "llama", "vocab_size": 256, "seq_len": 16, "d_model": 16, "n_layer": 1, "n_head": 2}',
    ],
)
def test_every_family_of_language_models_trains(make_run, model):
    result = train(make_run(f"model={model}", "training_arguments.max_steps=2"))
    assert result.metrics["validation_loss"] < 6


def test_epochs_become_steps(make_run):
    run = make_run("training_arguments.max_steps=-1", "training_arguments.num_train_epochs=1.5")
    assert run.n_steps == -(-3 * (run.corpus.train.n_windows // 16) // 2)


def test_the_schedule_of_the_deepspeed_part_wins(make_run, tmp_path):
    params = '"total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_type": "linear", "warmup_max_lr": "auto"'
    scheduler = f'deepspeed.scheduler={{"type": "WarmupDecayLR", "params": {{{params}}}}}'
    train(make_run(scheduler, "training_arguments.warmup_steps=4", "training_arguments.max_steps=4"))
    rates = [line["learning_rate"] for line in lines(tmp_path / "out") if "loss" in line]
    assert rates == pytest.approx([0, 0, 0.0025, 0.005])


def test_the_deepspeed_part_says_what_is_shown_and_written(make_run, tmp_path):
    deepspeed = {"zero_optimization": {"stage": 2}, "steps_per_print": 2, "dump_state": True}
    deepspeed |= {"tensorboard": {"enabled": True, "job_name": "job"}, "csv_monitor": {"enabled": True}}
    deepspeed |= {"fp16": {"enabled": True, "initial_scale_power": 40}}  # so that steps are skipped
    run = make_run(f"deepspeed={json.dumps(deepspeed)}", "training_arguments.eval_steps=100")

    def printed(run: Run, **options: bool) -> tuple[list[int], str]:
        console = Console(file=io.StringIO(), width=100, force_terminal=False, color_system=None)
        describe(run, console)
        train(run, console=console, **options)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return [int(step) for step in re.findall(r"^step +(\d+)  loss", text, re.MULTILINE)], text

    steps, text = printed(run)
    assert steps == [2, 4, 6]
    assert re.search(r"steps_per_print +2 +honoured +given", text)  # from dump_state
    why = r"the gradient of \S+ overflows at loss scale 1.09951e\+12, first in micro-batch 1 of 2"
    assert re.search(rf"step 1 was skipped: {why}", " ".join(text.split()))
    assert not any("nonfinite" in name for line in lines(tmp_path / "out") for name in line)
    losses = (tmp_path / "out/csv_monitor/DeepSpeedJobName/Train_Samples_train_loss.csv").read_text().splitlines()
    assert losses[1:] == [f"{16 * line['step']},{line['loss']}" for line in lines(tmp_path / "out") if "loss" in line]
    assert len(list((tmp_path / "out/tensorboard/job").iterdir())) == 1
    arguments = run.config.training_arguments.model_copy(update={"logging_steps": 3})
    arguments.model_fields_set.add("logging_steps")
    assert printed(
        replace(run, config=run.config.model_copy(update={"training_arguments": arguments})), overwrite=True
    )[0] == [3, 6]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.vocab_size=100", "model.vocab_size is 100; byte tokens need at least 256."),
        ("data.seq_len=32", "data.seq_len 32 is more than the model.seq_len 16."),
        (
            'model={"family": "resnet", "depth": 18, "n_classes": 10}',
            "model.family 'resnet' classifies images, and jzero train reads text; choose a family of language models",
        ),
        ('data.files=["no/*.txt"]', "data.files: no file matches 'no/*.txt' in "),
        ("data.validation_share=0.001", "the validation text is 8 bytes long; data.seq_len 16 needs at least 17."),
    ],
)
def test_a_run_that_does_not_fit_is_a_sentence(make_run, override, says):
    with pytest.raises(ConfigError) as error:
        make_run(override)
    assert str(error.value).startswith(says)


def test_wrong_folders_are_a_sentence(make_run, tmp_path):
    run = make_run("training_arguments.max_steps=1")
    thread = threading.Thread(target=lambda: train(run))  # where no signal handler can be set
    thread.start()
    thread.join()
    checkpoint = tmp_path / "out" / "checkpoint-1"
    with pytest.raises(ConfigError) as error:
        train(run, resume=checkpoint)
    assert str(error.value) == f"{checkpoint} is already at step 1 of 1; raise training_arguments.max_steps."
    with pytest.raises(CheckpointError):
        train(run, resume=tmp_path / "nowhere")
    with pytest.raises(ConfigError) as error:
        train(make_run(out="text.txt/inside"))
    assert str(error.value).startswith("training_arguments.output_dir: cannot write ")
