"""`jzero.plan.deepspeed_estimate` gives the very bytes that DeepSpeed's estimators return."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import jzero
from jzero.plan import deepspeed_estimate

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/memory_estimates.json").read_text())["estimates"]


def chosen(estimate, optimizer, param, zero_init=None):
    """DeepSpeed ignores offload_param without offload_optimizer."""
    wanted = (optimizer, optimizer and param, zero_init)
    (option,) = [o for o in estimate.options if (o.offload_optimizer, o.offload_param, o.zero_init) == wanted]
    return option


def test_bytes_are_deepspeeds():
    for case in GOLDEN:
        estimate = deepspeed_estimate(
            case["total_params"],
            stage=int(case["fn"][-1]),
            largest_layer=case.get("largest_layer_params"),
            gpus_per_node=case["num_gpus_per_node"],
            nodes=case["num_nodes"],
            additional_buffer_factor=case["additional_buffer_factor"],
        )
        option = chosen(estimate, case["cpu_offload"], case.get("cpu_offload_params", False), case.get("zero_init"))
        assert (option.cpu_bytes, option.gpu_bytes) == (case["cpu_mem_bytes"], case["gpu_mem_bytes"]), case


# CPU and GPU GiB as DeepSpeed prints them for 2,851M parameters, the largest layer 32M, in its order of options.
PRINTED = {
    (8, 1): [(71.69, 0.12), (127.45, 0.12), (63.72, 0.78), (127.45, 0.78), (1.43, 6.09), (127.45, 6.09)],
    (4, 4): [(17.92, 0.12), (63.72, 0.12), (15.93, 0.45), (63.72, 0.45), (0.72, 3.11), (63.72, 3.11)],
}


@pytest.mark.parametrize("cluster", PRINTED)
def test_the_table_has_what_deepspeed_prints(cluster):
    gpus_per_node, nodes = cluster
    estimate = deepspeed_estimate(
        2_851_000_000, stage=3, largest_layer=32_000_000, gpus_per_node=gpus_per_node, nodes=nodes
    )
    console = Console(width=200)
    with console.capture() as printed:
        console.print(estimate.table())
    text = printed.get()
    rows = [line for line in text.splitlines() if "zero_init=" in line]
    assert len(rows) == len(PRINTED[cluster])
    for row, (cpu, gpu) in zip(rows, PRINTED[cluster], strict=True):
        assert f"{cpu:.2f}GB | {gpu:.2f}GB" in row
    assert "without activations and buffers" in text


def test_a_model_s_parameters_are_counted():
    """Of modules, those that hold parameters themselves: embedding 1000 x 8, dense 8 x 32 + 32, and their sum."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(1000, 8, rngs=rngs)
            self.h = nnx.List([nnx.Linear(8, 32, rngs=rngs) for _ in range(3)])

    params = nnx.eval_shape(lambda: nnx.state(Net(nnx.Rngs(0)), nnx.Param))
    estimate = deepspeed_estimate(nnx.to_pure_dict(params), stage=3)
    assert (estimate.n_params, estimate.largest_layer) == (8000 + 3 * 288, 8000)
    params["embed"] = {}
    assert deepspeed_estimate(nnx.to_pure_dict(params), stage=3).largest_layer == 288


sizes = st.integers(1, 500)
modules = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.sampled_from("wbs"), sizes, min_size=1), min_size=1
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(modules, st.sampled_from([2, 3]), st.integers(1, 8), st.integers(1, 4))
def test_more_gpus_never_need_more_each_and_offloading_never_does(model, stage, gpus_per_node, nodes):
    params = jax.tree.map(lambda n: jax.ShapeDtypeStruct((n,), jnp.float32), model)
    estimate = deepspeed_estimate(params, stage=stage, gpus_per_node=gpus_per_node, nodes=nodes)
    assert estimate.n_params == sum(sum(module.values()) for module in model.values())
    if stage == 3:
        assert estimate.largest_layer == max(sum(module.values()) for module in model.values())
    larger = deepspeed_estimate(params, stage=stage, gpus_per_node=gpus_per_node, nodes=nodes + 1)
    for option, with_more in zip(estimate.options, larger.options, strict=True):
        assert with_more.gpu_bytes <= option.gpu_bytes
        assert option.gpu_bytes <= chosen(estimate, False, False, option.zero_init).gpu_bytes
        if option.zero_init:
            assert option.cpu_bytes <= chosen(estimate, option.offload_optimizer, option.offload_param, False).cpu_bytes
    # All GPUs together hold 18 bytes a parameter, and each of them the layer or the 16-bit copy that it computes with.
    own = 4 * estimate.largest_layer if stage == 3 else 2 * estimate.n_params
    last, n_gpus = estimate.options[-1], gpus_per_node * nodes
    assert math.isclose((last.gpu_bytes - own) * n_gpus, 18 * estimate.n_params, abs_tol=n_gpus)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stage": 1}, "no estimate for stage 1"),
        ({"stage": 3}, "give largest_layer too"),
        ({"stage": 3, "largest_layer": 11}, "largest_layer is 11 of 10 parameters"),
        ({"stage": 2, "nodes": 0}, "nodes is 0, but must be positive"),
    ],
)
def test_what_does_not_fit_is_one_sentence(arguments, sentence):
    with pytest.raises(jzero.ConfigError, match=f"^deepspeed_estimate: .*{sentence}"):
        deepspeed_estimate(10, **arguments)
