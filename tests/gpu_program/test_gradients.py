"""How gradients travel and in what company, read from the steps of a deep network compiled for 8 H100s."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jzero.plan import compile_step

LAYERS, WIDTH = 6, 256
KERNEL = WIDTH * WIDTH
# Elements -> collectives over the layers.
BUCKETS = {
    KERNEL - 1: 6,
    KERNEL + WIDTH: 6,
    3 * (KERNEL + WIDTH): 2,
    2**63 - 1: 1,
}
DTYPES = {"fp32": ("f32", 4), "bf16": ("bf16", 2), "fp16": ("f16", 2)}
REDUCTION = {0: "all-reduce", 1: "reduce-scatter", 2: "reduce-scatter", 3: "reduce-scatter"}


class Deep(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def compiled(stage, *, zero=None, **sections):
    """Kernels are divided from stage 1 on, biases are whole everywhere."""
    return compile_step(
        model=lambda rngs: Deep(rngs),
        loss_fn=lambda model, batch: (model(batch["x"]).astype(jnp.float32) ** 2).mean(),
        config={
            "train_batch_size": 8,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": WIDTH, **(zero or {})},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            **sections,
        },
        sample_batch={"x": jax.ShapeDtypeStruct((8, WIDTH), jnp.float32)},
        n_gpus=8,
    )


def count(program, kind, min_bytes=0):
    """Collectives, those that were merged into one counted once."""
    return len({(c.computation, c.name) for c in program.select(kind=kind, min_bytes=min_bytes)})


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("stage", REDUCTION)
def test_gradients_travel_in_the_communication_data_type(stage, name):
    program = compiled(stage, communication_data_type=name, bf16={"enabled": True})
    dtype, itemsize = DTYPES[name]
    gradients = [c for kind in set(REDUCTION.values()) for c in program.select(kind=kind, min_bytes=WIDTH)]
    assert {c.dtype for c in gradients} == {dtype}
    assert sum(c.n_bytes for c in gradients) >= LAYERS * (KERNEL + WIDTH) * itemsize
    assert sum(c.n_bytes for c in gradients if c.kind == REDUCTION[stage]) >= LAYERS * KERNEL * itemsize
    assert {c.dtype for c in program.select(kind="all-gather")} == ({"bf16"} if stage else set())


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_small_leaves_travel_in_one_all_reduce(stage, name):
    program = compiled(stage, communication_data_type=name)
    assert count(program, "all-reduce", WIDTH) == 1
    assert program.total_bytes("all-reduce") >= LAYERS * WIDTH * DTYPES[name][1]


def test_without_keys_the_collectives_of_a_small_model_are_merged():
    assert count(compiled(0), "all-reduce", WIDTH) == 1
    program = compiled(1)
    assert (count(program, "all-gather"), count(program, "reduce-scatter")) == (1, 1)


@pytest.mark.parametrize(("stage", "name"), [(0, "fp32"), (2, "bf16"), (3, "fp32")])
@pytest.mark.parametrize("elements", BUCKETS)
def test_a_reduction_holds_as_many_elements_as_reduce_bucket_size_says(stage, name, elements):
    program = compiled(stage, zero={"reduce_bucket_size": elements}, communication_data_type=name)
    assert count(program, REDUCTION[stage], KERNEL) == BUCKETS[elements]


@pytest.mark.parametrize(("stage", "bf16"), [(1, False), (2, True)])
@pytest.mark.parametrize("elements", BUCKETS)
def test_a_gather_holds_as_many_elements_as_allgather_bucket_size_says(stage, bf16, elements):
    program = compiled(stage, zero={"allgather_bucket_size": elements}, bf16={"enabled": bf16})
    assert count(program, "all-gather", KERNEL) == BUCKETS[elements]


def test_allgather_bucket_size_has_no_say_where_parameters_are_gathered_at_use():
    counts = {count(compiled(3, zero=zero), "all-gather") for zero in ({}, {"allgather_bucket_size": KERNEL - 1})}
    assert len(counts) == 1
