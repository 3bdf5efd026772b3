"""Hugging Face's training arguments: each is honoured, read as another, without effect, or refused with the reason."""

import pytest

from jzero.config import TrainingArguments, load_run
from jzero.config.schema.building import build
from jzero.config.schema.foreign_arguments import FOREIGN
from jzero.config.schema.section import Trace
from jzero.config.schema.verdicts import verdict
from jzero.errors import ConfigError


def read(**arguments) -> TrainingArguments:
    return build(TrainingArguments, arguments, file="arguments")


@pytest.mark.parametrize(
    ("arguments", "per_epoch", "steps"),
    [
        ({}, 40, (None, 500, 500)),
        ({"eval_steps": 7}, 40, (7, 500, 500)),
        ({"eval_strategy": "steps"}, 40, (500, 500, 500)),
        ({"eval_strategy": "steps", "eval_steps": 7}, 40, (7, 500, 500)),
        ({"eval_strategy": "no", "eval_steps": 7}, 40, (None, 500, 500)),
        ({"evaluation_strategy": "epoch", "save_strategy": "epoch"}, 40, (40, 40, 500)),
        ({"save_strategy": "no", "logging_strategy": "epoch"}, 0, (None, 2**31 - 1, 1)),
        ({"logging_strategy": "no"}, 40, (None, 500, 2**31 - 1)),
    ],
)
def test_strategies_become_steps(arguments, per_epoch, steps):
    read_as = read(**arguments).with_steps(per_epoch)
    assert (read_as.eval_steps, read_as.save_steps, read_as.logging_steps) == steps


@pytest.mark.parametrize(
    ("arguments", "updates"),
    [
        ({"warmup_steps": 0.1}, 20),
        ({"warmup_steps": 30}, 30),
        ({"warmup_steps": "30"}, 30),
        ({"warmup_ratio": 0.03}, 6),
        ({"warmup_ratio": 0.5, "warmup_steps": 0.1}, 20),
        ({}, 0),
    ],
)
def test_a_warm_up_is_steps_or_a_share(arguments, updates):
    assert read(**arguments).warmup_updates(200) == updates


def test_names_of_today_and_of_before():
    arguments = read(
        optim="adamw_torch_fused", report_to="all", resume_from_checkpoint="true", per_gpu_train_batch_size=3
    )
    assert (arguments.optim, arguments.report_to, arguments.resume_from_checkpoint) == ("adamw", ("tensorboard",), True)
    assert arguments.per_device_train_batch_size == 3
    assert read(activation_checkpointing=True).gradient_checkpointing
    assert read(report_to="none").report_to == read(report_to=[]).report_to == ()
    assert read(metric_for_best_model="eval_loss", push_to_hub=False, fsdp="", deepspeed=None).fsdp == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"label_smoothing_factor": 0.1},
            "`label_smoothing_factor` = 0.1 is refused: the loss of",
        ),
        ({"load_best_model_at_end": True}, "`load_best_model_at_end` = True is refused: the last state stays"),
        ({"train_sampling_strategy": "sequential"}, "is refused: every epoch has its own random order"),
        ({"adafactor": True}, "`adafactor` = True is refused: another optimizer, and what it takes, is the section"),
        ({"deepspeed": "ds.json"}, "`deepspeed` = 'ds.json' is refused: it is the part `deepspeed` of the run file"),
        ({"overwrite_output_dir": True}, "is refused: give `--overwrite` on the command line"),
        ({"report_to": "wandb"}, "`report_to` must be tensorboard, all or none, got 'wandb'"),
        ({"optim": "adafactor"}, "`optim` must be one of adamw, got 'adafactor'"),
        ({"warmup_steps": 1.5}, "`warmup_steps` must be a whole number of steps, or a share below 1, got 1.5"),
        ({"warmup_steps": -1}, "`warmup_steps` must be a number at least 0"),
        ({"early_stopping_patience": 2}, "`early_stopping_patience` needs evaluations: give `eval_steps`"),
        ({"eval_strategy": "sometimes"}, "`eval_strategy` must be one of no, steps, epoch"),
        ({"resume_from_checkpoint": 3}, "`resume_from_checkpoint` must be a path, true or false, got 3"),
        ({"eval_stratgy": "no"}, "unknown key `eval_stratgy`; did you mean `eval_strategy`?"),
    ],
)
def test_what_is_not_here_is_refused_with_the_reason(arguments, says):
    with pytest.raises(ConfigError) as error:
        read(**arguments)
    assert says in str(error.value)


def test_what_has_no_effect_is_noted():
    trace = Trace()
    build(TrainingArguments, dict.fromkeys(FOREIGN, 1), file="arguments", trace=trace)
    assert len(trace.notes) == len(FOREIGN) > 60
    assert "`torch_compile` has no effect here: XLA compiles every step as a whole" in trace.notes
    assert not FOREIGN.keys() & TrainingArguments.model_fields.keys()


def test_notes_and_refusals_reach_a_run_file():
    run = {"model": {"family": "gpt"}, "deepspeed": {}}
    notes = load_run({**run, "training_arguments": {"dataloader_num_workers": 4}}).deepspeed.notes
    assert any("`training_arguments.dataloader_num_workers` has no effect here" in note for note in notes)
    with pytest.raises(ConfigError, match=r"`training_arguments\.push_to_hub` = True is refused: "):
        load_run({**run, "training_arguments": {"push_to_hub": True}})


def test_every_refusal_says_what_to_do_or_why():
    fields = TrainingArguments.model_fields.values()
    assert all(len(verdict(field).reason) > 20 for field in fields if verdict(field).kind == "refused")
