"""A checkpoint of any stage, number of devices and precision continues under any other.

A handful of combinations, all pairs of them, runs every time; `make test-full` runs the whole matrix.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from tests.helpers import build, host

ROWS, N_BEFORE, N_AFTER = 24, 3, 3
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 1}},  # a scale that has moved
}
OFFLOADED = "bf16, moments in host memory"
TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2, OFFLOADED: 4e-2}
ALL = list(itertools.product(range(4), (1, 2, 3, 8), PRECISIONS))
SOME = [(3, 8, "fp32"), (0, 1, "fp32"), (1, 2, OFFLOADED), (2, 3, "fp16")]


class Odd:
    """Leaves of sizes that divide by nothing, by some and by all numbers of devices, one large, one empty."""

    def init(self, key: jax.Array, batch: Any) -> dict[str, jax.Array]:
        shapes = {"one": (1,), "three": (3,), "many": (32,), "large": (50257, 7), "none": (0, 3), "scalar": ()}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def loss_fn(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    x = params["large"][batch["token"]]  # [B, 7]
    y = x[:, :3] * params["three"] + params["one"] * params["scalar"]
    y = y.sum(-1) + x @ params["many"][:7] + params["none"].sum() + params["many"].mean()
    return ((y - batch["y"]).astype(jnp.float32) ** 2).mean()


def batch(index: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(index)
    return {"token": random.integers(0, 50257, ROWS, np.int32), "y": random.standard_normal(ROWS, np.float32)}


@functools.cache
def engine(stage: int, n_devices: int, precision: str) -> jzero.Engine:
    sections = dict(PRECISIONS[precision.partition(",")[0]])
    if precision == OFFLOADED:
        sections["zero_optimization"] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    return build(stage, batch(0), model=Odd(), loss_fn=loss_fn, n_devices=n_devices, sections=sections)


class Saved(NamedTuple):
    path: Any
    state: Any
    losses: list[float]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Trains and saves each combination once: a function from the combination to what it saved and how it went on."""

    @functools.cache
    def make(stage: int, n_devices: int, precision: str) -> Saved:
        path = tmp_path_factory.mktemp("matrix") / "c"
        it = engine(stage, n_devices, precision)
        it.state = it.functional.init(np.uint32(7))
        for i in range(N_BEFORE):
            it.train_batch(batch(i))
        it.save_checkpoint(path, {"next_batch": N_BEFORE})
        return Saved(path, true_state(it), go_on(it))

    return make


def true_state(it: jzero.Engine) -> dict[str, np.ndarray]:
    is_placement = lambda x: hasattr(x, "padded_shape")
    cut = lambda place, x: x[tuple(map(slice, place.shape))]
    unpadded = jax.tree.map(cut, it.functional.placements, host(it.state), is_leaf=is_placement)
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(unpadded)}


def go_on(it: jzero.Engine) -> list[float]:
    return [float(it.train_batch(batch(N_BEFORE + i))["loss"]) for i in range(N_AFTER)]


def check(saved, source: tuple[int, int, str], target: tuple[int, int, str]) -> None:
    before, it = saved(*source), engine(*target)
    it.state = it.functional.init(np.uint32(1))
    fresh = true_state(it)
    assert it.load_checkpoint(before.path) == {"next_batch": N_BEFORE}
    loaded, scales_alike = true_state(it), source[2] == target[2] or "fp16" not in (source[2], target[2])
    assert loaded.keys() == before.state.keys()
    for name, value in loaded.items():
        expected = before.state if scales_alike or not name.startswith(".loss_scale") else fresh
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    losses = go_on(it)
    if source == target:
        assert losses == before.losses
    np.testing.assert_allclose(losses, before.losses, rtol=max(TOLERANCE[source[2]], TOLERANCE[target[2]]))


@pytest.mark.parametrize("source", SOME, ids=str)
def test_some_load_at_some(saved, source):
    for target in SOME:
        check(saved, source, target)


@pytest.mark.full
@pytest.mark.parametrize("source", ALL, ids=str)
def test_all_load_at_all(saved, source):
    for target in ALL:
        check(saved, source, target)
