"""Models put together at random: operations of the zoo one after another, under transforms, with parameters shared.

Every operation maps rows to rows of the same width and knows nothing of the other rows, so that a loss is a mean over
rows and the same on any number of devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.zoo import control_flow, rules
from tests.zoo.case import Case, Pure, floats

D = control_flow.OUT  # matrices of 17161 elements, large enough to be divided at every stage; 8 does not divide them
SHAPES = {"a": (D, D), "b": (D, D), "stack": (3, D, D), "u": (D, 8), "table": (16, D), "v": (D,), "kernel": (9, 1, 1)}

Params = dict[str, jax.Array]


class Operation(NamedTuple):
    """What an operation computes of its parameters and of rows, and which parameters these are."""

    names: Sequence[str]
    apply: Callable[[Params, jax.Array], jax.Array]


def standardised(p, x):
    w = p["a"]
    return x @ ((w - w.mean(0)) / jnp.sqrt(w.var(0) + 1e-3) / 9)


def padded(p, x):
    return (x @ jnp.pad(p["a"], ((0, 0), (0, 5))))[:, :D]


def spectral(p, x):
    return jnp.fft.irfft(jnp.fft.rfft(x, n=2 * D) * jnp.fft.rfft(p["v"], n=2 * D), n=2 * D)[:, :D]


def row_off(p, x):
    return x @ p["a"].at[0].set(0.0) + p["v"].at[3].add(1.0)


def looked_up(p, x):
    return x * p["table"][jnp.argmax(x[:, :16], axis=-1)]


def normalised(p, x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3) * p["v"] + p["a"].mean(0)


def scanned(p, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["stack"])[0]


def scanned_blocks(p, x):
    block = jax.checkpoint(lambda x, w: x + jnp.tanh(x @ w) @ p["a"])
    return jax.lax.scan(lambda x, w: (block(x, w), None), x, p["stack"], reverse=True)[0]


def convolved(p, x):
    numbers = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(x[..., None], p["kernel"], (1,), "SAME", dimension_numbers=numbers)[..., 0]


def heads(p, x):
    return jnp.einsum("bi,ihj->bhj", x, p["a"][:, :130].reshape(D, 10, 13)).sum(1) @ p["b"][:13]


def slope(p, x):
    return jax.vmap(jax.grad(lambda x: jnp.tanh(x @ p["a"]).sum()))(x)


def mixed(p, x):
    scores = jax.nn.softmax(x[:, :, None] * p["v"][None, None, :8], axis=1)
    return jnp.einsum("bis,bi,js->bj", scores, x, p["u"])


def relative(p, x):
    """Around 0, for where tanh is flat, gradients are little more than rounding."""
    return x - jax.nn.logsumexp(x @ p["a"], axis=-1, keepdims=True) + np.log(D, dtype=np.float32)


OPERATIONS = {
    "product": Operation("a", lambda p, x: x @ p["a"]),
    "transposed": Operation("a", lambda p, x: x @ p["a"].T),
    "low rank": Operation("u", lambda p, x: x + x @ p["u"] @ p["u"].T),
    "select by row": Operation("ab", control_flow.select_by_row),
    "loop": Operation("ab", control_flow.fori),
    "loop by index": Operation(["stack"], control_flow.indexed),
    "loop over layers": Operation(["stack"], scanned),
    "loop over blocks": Operation(["stack", "a"], scanned_blocks),
    "loop of unknown length": Operation("ab", control_flow.counted_by_data),
    "nested jit": Operation("ab", control_flow.nested_jit),
    "scaled rule": Operation("a", lambda p, x: rules.scaled_product(0.7, x, p["a"])),
    "smooth rule": Operation("a", lambda p, x: rules.smooth_product(x, p["a"])),
    "kernel": Operation("a", lambda p, x: rules.pallas_product(x, p["a"])),
    "standardised": Operation("a", standardised),
    "padded": Operation("a", padded),
    "spectral": Operation("v", spectral),
    "row off": Operation("av", row_off),
    "lookup": Operation(["table"], looked_up),
    "normalised": Operation("va", normalised),
    "convolution": Operation(["kernel"], convolved),
    "heads": Operation("ab", heads),
    "slope": Operation("a", slope),
    "mixed": Operation("vu", mixed),
    "sorted": Operation("a", lambda p, x: jnp.sort(x @ p["a"], axis=-1)),
    "relative": Operation("a", relative),
}


def rounded(w):
    """To bf16, as if the gradient knew nothing of it: rounded too, it would depend on the number of devices."""
    return w + jax.lax.stop_gradient(w.astype(jnp.bfloat16).astype(w.dtype) - w)


SAVES_DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
TRANSFORMS: dict[str, Callable] = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "remat that keeps products": functools.partial(jax.checkpoint, policy=SAVES_DOTS),
    "remat of jit": lambda f: jax.checkpoint(jax.jit(f)),
    "by row": lambda f: lambda p, x: jax.vmap(lambda x: f(p, x[None])[0])(x),
    "twice": lambda f: lambda p, x: f(p, jnp.tanh(f(p, x))),
    "twice in a loop": lambda f: lambda p, x: jax.lax.scan(lambda x, _: (jnp.tanh(f(p, x)), None), x, None, 2)[0],
    "beside the input": lambda f: lambda p, x: x + f(p, x),
    "rounded": lambda f: lambda p, x: f(jax.tree.map(rounded, p), x),
    "as a branch": lambda f: lambda p, x: jax.lax.cond(x.shape[0] > 0, f, lambda p, x: x, p, x),
    "partly frozen": lambda f: lambda p, x: 0.5 * f(p, x) + 0.5 * f(jax.lax.stop_gradient(p), x),
}


class Layer(NamedTuple):
    """One operation of a model: its name, the transform around it, and the layers whose parameters it takes."""

    operation: str
    transform: str
    owners: dict[str, int]


def layers(seed: int) -> list[Layer]:
    """The layers of a model: two to five of them, of which every third parameter is that of an earlier one."""
    random = np.random.default_rng(seed)
    choose = lambda table: list(table)[random.integers(len(table))]
    found: list[Layer] = []
    for i in range(random.integers(2, 6)):
        operation, transform = choose(OPERATIONS), choose(TRANSFORMS)
        if operation == "kernel" and transform == "by row":
            transform = "jit"  # interpreted, a row after the other takes a minute
        owners = {}
        for name in OPERATIONS[operation].names:
            earlier = [j for j, layer in enumerate(found) if layer.owners.get(name) == j]
            tied = bool(earlier) and random.random() < 1 / 3
            owners[name] = earlier[random.integers(len(earlier))] if tied else i
        found.append(Layer(operation, transform, owners))
    return found


def composed(seed: int) -> Case:
    """The model of a seed."""
    chosen = layers(seed)
    shapes = {f"{name}{j}": SHAPES[name] for layer in chosen for name, j in layer.owners.items()}

    def make(key: jax.Array) -> Params:
        scale = lambda shape: 9 if len(shape) > 1 and shape[-1] == D else 2
        each = enumerate(shapes.items())
        return {n: jax.random.normal(jax.random.fold_in(key, i), s) / scale(s) for i, (n, s) in each}

    def loss(params: Params, batch: Any) -> jax.Array:
        x = batch["x"]
        for layer in chosen:
            apply = TRANSFORMS[layer.transform](OPERATIONS[layer.operation].apply)
            x = jnp.tanh(apply({name: params[f"{name}{j}"] for name, j in layer.owners.items()}, x))
        penalty = 1e-3 * sum((w**2).mean() for w in params.values()) if seed % 3 == 0 else 0.0
        return ((x - batch["y"]) ** 2).mean() + penalty

    return Case(Pure(make), loss, {"x": floats(D, seed=seed), "y": floats(D, seed=seed + 1)})
