"""Every parameter of every optimizer and schedule has an effect: with another value the update, or the rate, changes.

That it is the effect that torch and DeepSpeed mean is tested in `tests/optim/test_optim.py` and `tests/schedules`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.config import Config
from jzero.config.schema import optimizer, scheduler
from jzero.config.schema.section import SectionType
from jzero.config.schema.verdicts import HONOURED, verdict
from jzero.optim import build_optimizer
from jzero.schedules import build_momentum, build_schedule


def of_schemas(types: dict[str, SectionType]) -> dict[str, str]:
    """The name of each schema, and the first type that has it."""
    return {schema.__name__: kind for kind, schema in reversed(types.items())}


def keys_of(schema: SectionType) -> list[str]:
    return [name for name, field in schema.model_fields.items() if verdict(field, HONOURED).kind == "honoured"]


OPTIMIZERS = of_schemas(optimizer.PARAMS)
OTHER_UPDATE = {
    "adam_lr": 0.2,
    "adam_w_mode": False,
    "alpha": 0.5,
    "betas": [0.5, 0.625],
    "bias_correction": False,
    "centered": True,
    "dampening": 0.25,
    "decoupled_weight_decay": True,
    "eps": 0.125,
    "eps_inside_sqrt": True,
    "etas": [0.25, 1.5],
    "initial_accumulator_value": 0.5,
    "lr": 0.25,
    "lr_decay": 0.1,
    "max_coeff": 0.5,
    "min_coeff": 0.4,
    "momentum": 0.5,
    "momentum_decay": 0.1,
    "muon_lr": 0.3,
    "nesterov": True,
    "rho": 0.5,
    "step_sizes": [0.01, 0.02],
    "torch_adam": True,
    "weight_decay": 0.5,
}
BESIDE_UPDATE = {
    "adam_w_mode": {"weight_decay": 0.25},
    "decoupled_weight_decay": {"weight_decay": 0.25},
    "nesterov": {"momentum": 0.9},
    "dampening": {"momentum": 0.9},
}


def updates(kind: str, **params: Any) -> str:
    """Two updates of a matrix and a vector, as a jaxpr."""
    transformation = build_optimizer(Config.load({"optimizer": {"type": kind, "params": params}})).transformation

    def two_updates(weights):
        state = transformation.init(weights)
        _, state = transformation.update(weights, state, weights)
        return transformation.update(weights, state, weights)[0]

    with jax.numpy_dtype_promotion("standard"):  # optax mixes its step count with floats
        weights = {"w": jnp.ones((3, 4), jnp.float32), "b": jnp.ones(5, jnp.float32)}
        return str(jax.make_jaxpr(two_updates)(weights))


@pytest.mark.parametrize("schema", OPTIMIZERS)
def test_every_parameter_of_an_optimizer_changes_its_update(schema):
    kind = OPTIMIZERS[schema]
    keys = keys_of(optimizer.PARAMS[kind])
    pairs = {key: (BESIDE_UPDATE.get(key, {}), {key: OTHER_UPDATE[key]}) for key in keys}
    assert keys
    assert [
        k for k, (beside, other) in pairs.items() if updates(kind, **beside) == updates(kind, **beside, **other)
    ] == []


def test_the_type_chooses_the_update():
    programs = [updates(kind) for kind in OPTIMIZERS.values()]
    assert len(set(programs)) == len(programs)


SCHEDULES = of_schemas(scheduler.PARAMS)
BASE = {
    "WarmupParams": {"warmup_num_steps": 8},
    "WarmupDecayParams": {"warmup_num_steps": 8, "total_num_steps": 24},
    "WarmupCosineParams": {"warmup_num_steps": 8, "total_num_steps": 24},
    "OneCycleParams": {"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_first_step_size": 6}
    | {"decay_step_size": 2, "decay_lr_rate": 0.25, "decay_mom_rate": 0.02},
    "LRRangeTestParams": {"lr_range_test_step_size": 4},
    "StepParams": {"step_size": 3},
    "MultiStepParams": {"milestones": [5]},
    "ExponentialParams": {"gamma": 0.9},
    "CosineAnnealingParams": {"T_max": 9},
    "WarmRestartsParams": {"T_0": 5},
    "CyclicParams": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 5},
    "OneCycleLRParams": {"max_lr": 1.0, "epochs": 3, "steps_per_epoch": 8},
}
OTHER_RATE = {
    "T_0": 4,
    "T_max": 6,
    "T_mult": 2,
    "anneal_strategy": "linear",
    "base_lr": 0.01,
    "base_momentum": 0.5,
    "cos_min_ratio": 0.25,
    "cycle_first_stair_count": 2,
    "cycle_first_step_size": 5,
    "cycle_max_lr": 0.5,
    "cycle_max_mom": 0.95,
    "cycle_min_lr": 0.01,
    "cycle_min_mom": 0.5,
    "cycle_momentum": False,
    "cycle_second_stair_count": 2,
    "cycle_second_step_size": 7,
    "decay_lr_rate": 0.5,
    "decay_mom_rate": 0.01,
    "decay_step_size": 3,
    "div_factor": 5.0,
    "end_factor": 0.5,
    "epochs": 4,
    "eta_min": 0.05,
    "factor": 0.5,
    "final_div_factor": 10.0,
    "gamma": 0.5,
    "lr_range_test_min_lr": 0.01,
    "lr_range_test_staircase": True,
    "lr_range_test_step_rate": 2.0,
    "lr_range_test_step_size": 6,
    "max_lr": 0.5,
    "max_momentum": 0.92,
    "milestones": [3, 9],
    "mode": "triangular2",
    "pct_start": 0.5,
    "power": 2.0,
    "start_factor": 0.5,
    "step_size": 4,
    "step_size_down": 9,
    "step_size_up": 4,
    "steps_per_epoch": 5,
    "three_phase": True,
    "total_iters": 7,
    "total_num_steps": 20,
    "total_steps": 30,
    "warmup_max_lr": 0.5,
    "warmup_min_lr": 0.0005,
    "warmup_min_ratio": 0.5,
    "warmup_num_steps": 4,
    "warmup_type": "linear",
}


def rates(kind: str | None, **params: Any) -> list[list[float]]:
    """The learning rates of 32 updates, and their momenta if there are any."""
    section = Config.load({"scheduler": {"type": kind, "params": params}}).scheduler
    momentum, steps = build_momentum(section), jnp.arange(32, dtype=jnp.int32)
    schedules = [build_schedule(section, 0.3), *([momentum.schedule] if momentum else [])]
    return [np.asarray(schedule(steps)).tolist() for schedule in schedules]


@pytest.mark.parametrize("schema", SCHEDULES)
def test_every_parameter_of_a_schedule_changes_its_rate_or_momentum(schema):
    kind, base = SCHEDULES[schema], BASE.get(schema, {})
    keys = keys_of(scheduler.PARAMS[kind])
    beside = {key: base | ({"mode": "exp_range"} if (schema, key) == ("CyclicParams", "gamma") else {}) for key in keys}
    assert keys
    same = [key for key in keys if rates(kind, **beside[key]) == rates(kind, **{**beside[key], key: OTHER_RATE[key]})]
    assert same == []


def test_the_type_chooses_the_rates():
    found = [rates(kind, **BASE.get(schema, {})) for schema, kind in SCHEDULES.items()]
    assert all(found.count(values) == 1 for values in found)
