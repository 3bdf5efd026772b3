"""Every number has bounds, and numbers that belong together are in order; what nobody is likely to want is noted."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pydantic import PlainValidator
from pydantic.fields import FieldInfo

from jzero.config import Config, TrainingArguments
from jzero.config.run import RunConfig
from jzero.config.schema.hf_schedules import KWARGS
from jzero.config.schema.param_groups import ParamGroup
from jzero.config.schema.section import SectionType, sections_of
from jzero.config.show.reference import type_words, validator
from jzero.errors import ConfigError
from jzero.schedules import build_momentum, build_schedule, hf_schedule
from jzero.zero.loss_scale import init_loss_scale, update_loss_scale

INT32 = 2**31 - 1


def numbers() -> Iterator[tuple[str, FieldInfo]]:
    """Every key of every schema that takes a number, with the section's name."""
    pending: list[SectionType] = [Config, RunConfig, TrainingArguments, ParamGroup, *KWARGS.values()]
    seen = set()
    while pending:
        cls = pending.pop()
        for name, field in cls.model_fields.items():
            pending += [inner for inner in sections_of(field.annotation) if inner not in seen]
            seen.update(sections_of(field.annotation))
            if "number" in type_words(field):
                yield f"{cls.__name__}.{name}", field


NUMBERS = dict(numbers())


def refusal(check: PlainValidator, value: object) -> str:
    try:
        check.func(value)  # type: ignore[call-arg]
    except ValueError as error:
        return str(error)
    return ""


def test_all_numbers_are_found():
    assert len(NUMBERS) > 200
    assert {"Fp16.hysteresis", "OneCycleParams.cycle_max_lr", "StableKwargs.num_decay_steps"} <= NUMBERS.keys()


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_has_an_upper_and_a_lower_bound_with_a_sentence(key):
    check = validator(NUMBERS[key])
    assert check is not None
    more = (2**63, -(2**63)) if "whole number" in type_words(NUMBERS[key]) else (1e39,)
    for value in (*more, 1e308, 10**400, -1e308, math.inf, math.nan, "1e400", [1e308, 1e309], [-1e308, 0]):
        if key == "Config.steps_per_print" and value == math.inf:
            continue  # which is its word for never
        said = refusal(check, value)
        assert said.startswith("must be "), (value, said)
        assert len(said) < 300


STEPS = {
    "fp16": {"enabled": True, "loss_scale_window": INT32, "hysteresis": INT32},
    "WarmupLR": {"warmup_num_steps": INT32},
    "WarmupDecayLR": {"warmup_num_steps": INT32, "total_num_steps": INT32},
    "WarmupCosineLR": {"warmup_num_steps": INT32, "total_num_steps": INT32},
    "OneCycle": {
        "cycle_min_lr": 0.1,
        "cycle_max_lr": 1,
        "cycle_first_step_size": INT32 // 2,
        "cycle_first_stair_count": 10_000,
        "decay_step_size": INT32,
    },
    "LRRangeTest": {"lr_range_test_step_size": INT32},
    "ConstantLR": {"total_iters": INT32},
    "LinearLR": {"total_iters": INT32},
    "PolynomialLR": {"total_iters": INT32, "power": 1000},
    "StepLR": {"step_size": INT32},
    "MultiStepLR": {"milestones": [0, INT32]},
    "CosineAnnealingLR": {"T_max": INT32 // 2},
    "CosineAnnealingWarmRestarts": {"T_0": INT32, "T_mult": INT32},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 1, "step_size_up": INT32 // 2},
    "OneCycleLR": {"max_lr": 1, "total_steps": INT32},
}
"""The largest numbers of updates that each schedule takes; one more is refused."""


@pytest.mark.parametrize("kind", [kind for kind in STEPS if kind != "fp16"])
def test_a_schedule_of_the_most_updates_that_are_taken_gives_numbers(kind):
    scheduler = Config.load({"scheduler": {"type": kind, "params": STEPS[kind]}}).scheduler
    momentum = build_momentum(scheduler)
    for schedule in (build_schedule(scheduler, 0.5), momentum and momentum.schedule):
        for k in (0, 5, INT32 - 1) if schedule else ():
            assert jnp.isfinite(schedule(k))


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, key) for kind, params in STEPS.items() for key, n in params.items() if n in (INT32, INT32 // 2)],
)
def test_one_update_more_is_refused(kind, key):
    for more in (STEPS[kind][key] + 1, 2**40, 1e300):
        params = {**STEPS[kind], key: more}
        file: dict[str, Any] = {"fp16": params} if kind == "fp16" else {"scheduler": {"type": kind, "params": params}}
        with pytest.raises(ConfigError, match=rf"`[a-z0-9_.]*{key}` (must be|= {STEPS[kind][key] + 1} and)"):
            Config.load(file)


def test_the_largest_window_and_hysteresis_are_counted():
    config = Config.load({"train_batch_size": 1, "fp16": STEPS["fp16"]}).resolve(world=1)
    state = jax.eval_shape(lambda: update_loss_scale(init_loss_scale(config), jnp.asarray(True), config))
    assert state.hysteresis_left.dtype == jnp.int32


@pytest.mark.parametrize("kind", KWARGS)
def test_hugging_faces_schedules_take_as_many(kind):
    kwargs: dict[str, Any] = {
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": 5, "num_stable_steps": 5},
        "inverse_sqrt": {"timescale": INT32 // 2},
    }.get(kind, {})
    for warmup in (0, INT32):
        arguments = TrainingArguments(lr_scheduler_type=kind, lr_scheduler_kwargs=kwargs, warmup_steps=warmup)
        if kind == "warmup_stable_decay" and warmup:
            with pytest.raises(ConfigError, match="together"):
                hf_schedule(arguments, INT32)
        else:
            assert jnp.isfinite(hf_schedule(arguments, INT32)(INT32 - 1))


def test_cycles_that_int32_cannot_count_are_refused():
    arguments = TrainingArguments(lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 10**6})
    assert jnp.isfinite(hf_schedule(arguments, 1000)(999))
    with pytest.raises(ConfigError, match="num_cycles is 1000000; it must be at most 21474 for 100000 steps"):
        hf_schedule(arguments, 100_000)


def scheduler(kind: str, **params: object) -> dict[str, Any]:
    return {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "scheduler": {"type": kind, "params": params}}


def adam(**params: object) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": params}}


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (adam(betas=[0.9, 1.0]), "`optimizer.params.betas` must be two numbers at least 0 and below 1 in fp32"),
        (adam(betas=[0.9, 0.99999999]), "`optimizer.params.betas` must be two numbers at least 0 and below 1 in fp32"),
        (adam(lr=1e308), "`optimizer.params.lr` must be a number between 0 and 1000000.0, got 1e+308"),
        (adam(weight_decay=1e19), "`optimizer.params.weight_decay` must be a number between 0 and 1000000.0"),
        (adam(eps=1e30), "`optimizer.params.eps` must be a number between 0 and 1000000.0"),
        ({"optimizer": {"type": "RMSprop", "params": {"alpha": 1}}}, "at least 0 and below 1"),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 1}}}, "at least 0 and below 1"),
        ({"optimizer": {"type": "SGD", "params": {"dampening": 2}}}, "at least 0 and below 1"),
        ({"optimizer": {"type": "Adadelta", "params": {"rho": 1}}}, "at least 0 and below 1"),
        ({"optimizer": {"type": "Rprop", "params": {"etas": [1.5, 2]}}}, "must be a number between 0 and 1 and one"),
        ({"optimizer": {"type": "Rprop", "params": {"step_sizes": [1, 10**400]}}}, "must be a list of two numbers"),
        ({"gradient_accumulation_steps": 1e12}, "must be a whole number at most 2147483647, got 1000000000000.0"),
        ({"train_batch_size": 1e308}, "`train_batch_size` must be a whole number at most 2147483647, got 1e+308"),
        ({"steps_per_print": 0}, '`steps_per_print` must be a number of steps, or "inf", at least 1, got 0'),
        ({"gradient_predivide_factor": 1e30}, "must be a number between 2**-16 and 2**16"),
        ({"elasticity": {"micro_batch_sizes": [1] * 101}}, "must be a list of at most 100 numbers"),
        (scheduler("MultiStepLR", milestones=["auto", 3]), "must be a list of whole numbers, and none of them"),
        (
            {"fp16": {"enabled": True, "min_loss_scale": 2**20}},
            "`fp16.min_loss_scale` = 1.04858e+06 is above the first scale, 65536: an overflow would raise the scale",
        ),
        (
            {"fp16": {"enabled": True, "min_loss_scale": 4096}, "jzero": {"max_loss_scale": 4096, "keep_fp32": [1]}},
            "`jzero.keep_fp32` must be a list of strings",
        ),
        (
            scheduler("WarmupLR", warmup_min_lr=2e-3, warmup_max_lr=1e-3),
            "`scheduler.params.warmup_min_lr` = 0.002 is above `warmup_max_lr` = 0.001: swap the two",
        ),
        (
            scheduler("WarmupDecayLR", total_num_steps=9, warmup_min_lr=2e-3),
            "`scheduler.params.warmup_min_lr` = 0.002 is above `warmup_max_lr` = 0.001 (the default): give both",
        ),
        (
            scheduler("WarmupLR", warmup_min_lr=2e-3),
            "`scheduler.params.warmup_min_lr` = 0.002 is above `optimizer.params.lr` = 0.001",
        ),
        (
            scheduler("CosineAnnealingLR", T_max=5, eta_min=2e-3),
            "`scheduler.params.eta_min` = 0.002 is above `optimizer.params.lr` = 0.001",
        ),
        (
            scheduler("OneCycle", cycle_min_lr=1, cycle_max_lr=0.1),
            "`scheduler.params.cycle_min_lr` = 1 is above `cycle_max_lr` = 0.1: swap the two",
        ),
        (
            scheduler("OneCycle", cycle_min_lr=0.1, cycle_max_lr=1, cycle_max_mom=0.5),
            "`scheduler.params.cycle_min_mom` = 0.8 (the default) is above `cycle_max_mom` = 0.5: give both",
        ),
        (scheduler("CyclicLR", base_lr=1, max_lr=0.1), "`scheduler.params.base_lr` = 1 is above `max_lr` = 0.1"),
        (
            scheduler("OneCycleLR", max_lr=1, total_steps=9, base_momentum=0.99),
            "`scheduler.params.base_momentum` = 0.99 is above `max_momentum` = 0.95 (the default)",
        ),
        (scheduler("OneCycleLR", max_lr=1, epochs=2**20, steps_per_epoch=2**20), "are more than 2147483647 updates"),
        ({"optimizer": {"type": "Lamb", "params": {"min_coeff": 11}}}, "= 11 is above `max_coeff` = 10 (the default)"),
    ],
)
def test_what_cannot_train_is_refused(file, sentence):
    with pytest.raises(ConfigError) as error:
        Config.load(file)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (adam(lr=100), "`optimizer.params.lr` = 100 is unusual, from 0 to 10 is not: "),
        (adam(eps=0), "`optimizer.params.eps` = 0 is unusual, from 1e-30 to 1 is not: below, 0 is divided by 0"),
        (adam(eps=2), "`optimizer.params.eps` = 2 is unusual"),
        (adam(lr=1, weight_decay=2), "`optimizer.params.weight_decay` = 2 times a rate of 1 is 1 or more: an update "),
        ({"fp16": {"enabled": True, "loss_scale": 1e30}}, "`fp16.loss_scale` = 1e+30 is unusual, from 1 to 65504 is"),
        ({"fp16": {"enabled": True, "loss_scale": 0.5}}, "`fp16.loss_scale` = 0.5 is unusual"),
        ({"fp16": {"enabled": True, "initial_scale_power": 64}}, "`fp16.initial_scale_power` = 64 is unusual"),
        ({"gradient_clipping": 1e-30}, "`gradient_clipping` = 1e-30 is unusual, from 1e-06 to 3.4e+38 is not"),
        (
            {"fp16": {"enabled": True, "loss_scale": 128, "min_loss_scale": 2**20}},
            "`fp16.min_loss_scale` = 1048576.0 has no effect: `fp16.loss_scale` is a number, at which the scale stays",
        ),
        ({"gradient_accumulation_steps": 10**9}, "`gradient_accumulation_steps` = 1e+09 is unusual"),
        (
            scheduler("WarmupDecayLR", warmup_num_steps=100, total_num_steps=50, warmup_max_lr=1e-3),
            "`scheduler.params.warmup_num_steps` = 100 is above `total_num_steps` = 50: the run ends before",
        ),
        (
            scheduler("WarmupCosineLR", total_num_steps=50),
            "`scheduler.params.warmup_num_steps` = 1000 (the default) is above `total_num_steps` = 50: the run ends",
        ),
        (scheduler("ExponentialLR", gamma=2), "`scheduler.params.gamma` = 2 is unusual, from 0 to 1 is not: a factor"),
        (
            scheduler("OneCycle", cycle_min_lr=0.1, cycle_max_lr=1, decay_step_size=10, decay_mom_rate=1 / 9),
            "`scheduler.params.decay_mom_rate` = 0.111111 brings betas[0] to 1 after 4010 updates",
        ),
    ],
)
def test_what_trains_but_nobody_wants_is_noted(file, sentence):
    notes = Config.load(file).notes
    assert [note for note in notes if note.startswith(sentence)], notes


@pytest.mark.parametrize(
    "file",
    [
        adam(lr=1e-3, weight_decay=0.1, eps=1e-8),
        {"fp16": {"enabled": False, "loss_scale": 1e30, "min_loss_scale": 2**20, "initial_scale_power": 64}},
        {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 32}},
        {"fp16": {"enabled": True, "loss_scale": 128}, "gradient_clipping": 0},
        scheduler("WarmupDecayLR", warmup_num_steps="auto", total_num_steps=50, warmup_max_lr=1e-3),
        scheduler("OneCycle", cycle_min_lr=0.1, cycle_max_lr=1, decay_step_size=10, decay_mom_rate="auto"),
    ],
)
def test_usual_numbers_those_of_sections_that_are_off_and_autos_are_not(file):
    assert Config.load(file).notes == []
