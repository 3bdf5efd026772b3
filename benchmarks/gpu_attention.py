"""Parts of `gpu_real.py`: every path of attention on one device against all scores in fp32, and their times."""

import functools
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import jzero
from jzero.errors import ModelError

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal, grouped queries": {"causal": True, "groups": 4},
    "window": {"causal": True, "window": 256},
    "packed rows": {"causal": True, "packed": True},
    "bias": {"bias": True},
    "soft cap": {"causal": True, "softcap": 30.0},
    "heads of 256": {"causal": True, "width": 256},
}
PATHS = ("auto", "cudnn", "pallas", "blockwise")


def compare(sizes: Mapping[str, int], rounds: int, cases: Iterable[str] = CASES) -> dict[str, Any]:
    """For each case and path the largest errors, relative to the largest value, and the ratio of its time to plain's.

    A path that cannot do what is asked has the sentence that it is refused with.
    """
    found: dict[str, Any] = {}
    for name in cases:
        inputs, settings = _case(sizes, dict(CASES[name]))
        exact = _outputs("plain", settings)(*(x.astype(jnp.float32) for x in inputs))
        runs = {"plain": _outputs("plain", settings)}
        row: dict[str, Any] = {"plain": _errors(runs["plain"](*inputs), exact)}
        for path in PATHS:
            run = _outputs(path, settings)
            try:
                row[path] = _errors(run(*inputs), exact)
            except ModelError as error:
                row[path] = {"refused": str(error)}
                continue
            runs[path] = run
        for path, seconds in _times(runs, inputs, rounds).items():
            row[path]["milliseconds"] = 1e3 * seconds
        found[name] = row
    return found


def _case(sizes: Mapping[str, int], asked: dict[str, Any]) -> tuple[tuple[jax.Array, ...], dict[str, Any]]:
    """Queries, keys, values and the weights of the outputs, in bf16; and what attention is asked."""
    rows, tokens, heads, width = sizes["rows"], sizes["seq_len"], sizes["heads"], asked.pop("width", 64)
    n_keys = heads // min(asked.pop("groups", 1), heads)
    shapes = [(rows, tokens, n, width) for n in (heads, n_keys, n_keys, heads)]
    inputs = tuple(jax.random.normal(jax.random.key(i), shape).astype(jnp.bfloat16) for i, shape in enumerate(shapes))
    if asked.pop("packed", False):
        asked["segment_ids"] = jnp.broadcast_to(jnp.arange(tokens) * 3 // tokens, (rows, tokens)).astype(jnp.int32)
    if asked.pop("bias", False):
        asked["bias"] = jax.random.normal(jax.random.key(9), (1, heads, tokens, tokens)).astype(jnp.bfloat16)
    return inputs, asked


def _outputs(path: str, settings: dict[str, Any]) -> Any:
    """`(q, k, v, weights) -> value, dq, dk, dv`, compiled."""

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        attend = functools.partial(jzero.attention, implementation=path, **settings)
        value, pull = jax.vjp(attend, q, k, v)
        return value, *pull(weights.astype(value.dtype))

    return run


def _errors(got: tuple[jax.Array, ...], exact: tuple[jax.Array, ...]) -> dict[str, float]:
    """The largest error of the value and of each gradient, relative to the largest exact one."""
    error = lambda a, b: float(jnp.abs(a.astype(jnp.float32) - b).max() / jnp.abs(b).max())
    exact = tuple(x.astype(jnp.float32) for x in exact)
    return {what: error(a, b) for what, a, b in zip(("value", "dq", "dk", "dv"), got, exact, strict=True)}


def _times(runs: Mapping[str, Any], inputs: tuple[jax.Array, ...], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*inputs))
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
