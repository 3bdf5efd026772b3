"""Where each value comes from and what becomes of each key: every key of the schema, in exactly one verdict."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from jzero.config import Config, OptimizerConfig, SchedulerConfig, TrainingArguments
from jzero.config.schema.optimizer import PARAMS as OPTIMIZERS
from jzero.config.schema.scheduler import PARAMS as SCHEDULERS
from jzero.config.schema.section import Section, SectionType, sections_of
from jzero.config.schema.verdicts import verdict
from jzero.config.show.report import lines
from jzero.errors import ConfigError


def constructed(cls, **fields):
    """A section with every section inside it, unchecked; what cannot be left out is None."""
    for name, field in cls.model_fields.items():
        inner = sections_of(field.annotation)
        if inner and name not in (*fields, "optimizer", "scheduler"):
            fields[name] = constructed(inner[0])
        elif field.is_required():
            fields.setdefault(name, None)
    return cls.model_construct(**fields)


def every_path(cls, path=""):
    for name, field in cls.model_fields.items():
        yield f"{path}{name}"
        if name not in ("optimizer", "scheduler"):
            for inner in sections_of(field.annotation)[:1]:
                yield from every_path(inner, f"{path}{name}.")


def test_every_key_of_the_schema_is_a_line_with_one_verdict_and_a_reason():
    found = lines(constructed(Config))
    assert [line.path for line in found] == list(every_path(Config))
    for line in found:
        assert line.verdict.kind in ("honoured", "translated", "no effect here", "refused"), line
        assert line.verdict.kind == "honoured" or line.verdict.reason, line


@pytest.mark.parametrize(("section", "types"), [(OptimizerConfig, OPTIMIZERS), (SchedulerConfig, SCHEDULERS)])
def test_the_parameters_of_every_type_are_lines(section, types):
    name = "optimizer" if section is OptimizerConfig else "scheduler"
    for kind, schema in types.items():
        given = section.model_construct(type=kind, params=constructed(schema))
        found = {line.path: line for line in lines(Config.model_construct(**{name: given}))}
        assert found[f"{name}.type"].value == kind
        for key, field in schema.model_fields.items():
            line = found[f"{name}.params.{key}"]
            assert line.origin == ("given" if field.is_required() else "default")
            assert line.verdict.kind == verdict(field).kind


def test_sections_come_before_their_keys_and_absent_ones_are_one_line():
    found = lines(Config.load({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}))
    paths = [line.path for line in found]
    assert len(set(paths)) == len(paths)
    for i, path in enumerate(paths):
        outer = path.rpartition(".")[0]
        assert not outer or outer in paths[:i]
    by_path = {line.path: line for line in found}
    assert isinstance(by_path["zero_optimization.offload_param"].value, Section)
    assert by_path["zero_optimization.offload_optimizer"].value is None
    assert not any(path.startswith("zero_optimization.offload_optimizer.") for path in paths)


ARGUMENTS = TrainingArguments(learning_rate=3e-4, per_device_train_batch_size=2, max_grad_norm=0.5, bf16=True)


def origins(config):
    return {line.path: line.origin for line in lines(config, defaults=False)}


def test_where_the_values_of_a_resolved_configuration_come_from():
    file = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "bfloat16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
        "zero_optimization": {
            "stage": 3,
            "cpu_offload": True,
            "max_live_parameters": 7,
            "reduce_bucket_size": "auto",
            "stage3_max_reuse_distance": "auto",
        },
    }
    loaded = Config.load(file)
    resolved = loaded.resolve(world=8, training_arguments=ARGUMENTS, hidden_size=64)
    assert origins(resolved) == {
        "train_batch_size": (
            "derived from train_micro_batch_size_per_gpu, gradient_accumulation_steps and 8 data shards"
        ),
        "train_micro_batch_size_per_gpu": "auto from per_device_train_batch_size",
        "gradient_accumulation_steps": "given",
        "gradient_clipping": "auto from max_grad_norm",
        "bf16": "given as bfloat16",
        "bf16.enabled": "auto from bf16",
        "optimizer": "given",
        "optimizer.type": "given",
        "optimizer.params": "given",
        "optimizer.params.lr": "auto from learning_rate",
        "optimizer.params.betas": "auto from adam_beta1 and adam_beta2",
        "zero_optimization": "given",
        "zero_optimization.stage": "given",
        "zero_optimization.stage3_max_live_parameters": "given as max_live_parameters",
        "zero_optimization.reduce_bucket_size": "auto from the hidden size 64",
        "zero_optimization.stage3_max_reuse_distance": 'default, as "auto" has nothing to be filled from',
        "zero_optimization.offload_optimizer": "given",
        "zero_optimization.offload_optimizer.device": "given as cpu_offload",
    }
    assert origins(resolved.resolve(world=8)) == origins(resolved)
    opened = {line.path for line in lines(loaded) if line.origin == "open"}
    assert opened == {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "bf16.enabled",
        "optimizer.params.lr",
        "optimizer.params.betas",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_max_reuse_distance",
    }


def test_an_optimizer_that_only_the_arguments_give():
    found = origins(Config.load({"train_batch_size": 16}).resolve(world=8, training_arguments=ARGUMENTS))
    assert found["optimizer.type"] == "auto from training_arguments"
    assert found["optimizer.params.lr"] == "auto from learning_rate"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {"train_batch_size": 32},
            ("given", "derived from train_batch_size, gradient_accumulation_steps and 8 data shards", "default"),
        ),
        (
            {"train_micro_batch_size_per_gpu": 2},
            (
                "derived from train_micro_batch_size_per_gpu, gradient_accumulation_steps and 8 data shards",
                "given",
                "default",
            ),
        ),
        (
            {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2},
            ("given", "given", "derived from train_batch_size, train_micro_batch_size_per_gpu and 8 data shards"),
        ),
    ],
)
def test_where_the_batch_sizes_come_from(sizes, expected):
    found = {line.path: line.origin for line in lines(Config.load(sizes).resolve(world=8))}
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(found[name] for name in names) == expected


def test_a_key_of_another_stage_has_no_effect():
    for stage, kind in ((2, "no effect here"), (3, "honoured")):
        found = {line.path: line for line in lines(Config.load({"zero_optimization": {"stage": stage}}))}
        assert found["zero_optimization.stage3_max_live_parameters"].verdict.kind == kind
        assert found["zero_optimization.stage"].verdict.kind == "honoured"


def autos(cls: SectionType = Config, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key, and a file that has "auto" for it."""
    for name, field in cls.model_fields.items():
        inner = sections_of(field.annotation)
        if not inner:
            file: Any = "auto"
            for outer in reversed(f"{path}{name}".split(".")):
                file = {outer: file}
            yield path + name, file
        elif len(inner) == 1:
            yield from autos(inner[0], f"{path}{name}.")
        for kind, schema in TYPES[path.rstrip(".")].items() if len(inner) > 1 else ():
            needed = {key: "auto" for key, field in schema.model_fields.items() if field.is_required()}
            for key in schema.model_fields:
                yield f"{path}params.{key}", {path.rstrip("."): {"type": kind, "params": {**needed, key: "auto"}}}


TYPES = {"optimizer": OPTIMIZERS, "scheduler": SCHEDULERS}


def test_an_auto_is_shown_whatever_becomes_of_it():
    shown = 0
    for path, file in autos():
        with contextlib.suppress(ConfigError):  # where "auto" is no word, or something else is missing
            config = Config.load(file)
            for known in ({}, {"training_arguments": TrainingArguments(), "num_training_steps": 9}):
                resolved = config.resolve(world=8, partly=True, **known)
                line = next(line for line in lines(resolved, defaults=False) if line.path == path)
                assert line.origin != "given" or line.value in ("auto", ("auto",))
                shown += 1
    assert shown > 600


def test_a_size_that_the_model_tells_later_is_open_until_then():
    file = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    config = Config.load(file).resolve(world=8, partly=True)
    assert origins(config)["zero_optimization.reduce_bucket_size"] == "open"
    assert config.resolve(world=8, hidden_size=64).zero_optimization.reduce_bucket_size == 64 * 64
    assert config.resolve(world=8).zero_optimization.reduce_bucket_size is None


def test_nothing_of_apex_vanishes():
    amp = {"enabled": True, "opt_level": "auto", "loss_scale": "auto", "keep_batchnorm_fp32": True, "verbosity": 1}
    fp16 = {"enabled": False, "initial_scale_power": 8}
    config = Config.load({"train_batch_size": 8, "amp": amp, "fp16": fp16}).resolve(world=8)
    found = origins(config)
    assert found["fp16.enabled"] == "given as amp.opt_level"
    assert found["fp16.loss_scale"] == "given as amp.loss_scale"
    assert found["fp16.loss_scale_window"] == found["jzero.max_loss_scale"] == "as Apex has it, for `amp`"
    assert found["amp.keep_batchnorm_fp32"] == found["amp.verbosity"] == "given"
    assert "`amp.keep_batchnorm_fp32` has no effect here: `jzero.keep_fp32` names what stays fp32" in config.notes
    assert "`fp16.initial_scale_power` = 8 is read as `fp16.initial_scale_power` = 16" in config.notes
    for wrong, sentence in (
        ({"loss_scale": "big"}, "`amp.loss_scale` must be a number"),
        ({"opt_levl": 1}, "unknown key `amp.opt_levl`; `amp.opt_level`, which it resembles, is there already"),
    ):
        with pytest.raises(ConfigError) as error:
            Config.load({"amp": {**amp, **wrong}})
        assert sentence in str(error.value)
