"""The models that the benchmarks train: each with its loss, its batch and the name of its stacked layers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import build


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        name: what `--models` calls it.
        model: `rngs -> NNX module`.
        loss_fn: its loss function.
        batch: rows -> abstract batch.
        row: what one row of the batch is.
        rows_per_gpu: a batch of a usual size.
        stacked: name of the module that a loop over layers walks along, if there is one.
    """

    name: str
    model: Any
    loss_fn: Callable
    batch: Callable[[int], Any]
    row: str
    rows_per_gpu: int = 1
    stacked: str | None = None

    @property
    def params(self) -> Any:
        """Abstract parameters."""
        return nnx.state(nnx.eval_shape(lambda: self.model(nnx.Rngs(0))), nnx.Param)

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return sum(x.size for x in jax.tree.leaves(self.params))


def gpt(
    *,
    layers: int = 36,
    d_model: int = 4096,
    scan_layers: bool = True,
    seq_len: int = 1024,
    vocab_size: int = 50304,
    heads: int | None = None,
    remat: bool = True,
) -> Subject:
    """The GPT, 7.46B parameters by default; heads of width 128."""
    sizes = {"n_layer": layers, "d_model": d_model, "n_head": heads or d_model // 128, "remat": remat}
    sizes |= {"vocab_size": vocab_size, "seq_len": seq_len, "scan_layers": scan_layers}
    return _decoder("gpt" if scan_layers else "gpt-unrolled", {"family": "gpt", **sizes})


def llama(*, layers: int = 32, d_model: int = 4096, seq_len: int = 1024, vocab_size: int = 32000) -> Subject:
    """A Llama with stacked, rematerialised blocks; four query heads of width 128 share a key and a value head."""
    heads = d_model // 128
    sizes = {"n_layer": layers, "d_model": d_model, "n_head": heads, "n_kv_head": max(1, heads // 4)}
    sizes |= {"vocab_size": vocab_size, "seq_len": seq_len, "scan_layers": True, "remat": True}
    return _decoder("llama", {"family": "llama", **sizes})


def lstm(*, layers: int = 4, d_model: int = 2048, seq_len: int = 256, vocab_size: int = 32000) -> Subject:
    """A recurrent language model."""
    sizes = {"family": "lstm", "n_layer": layers, "d_model": d_model, "vocab_size": vocab_size}
    built = build(sizes)
    return Subject(
        "lstm", built.factory, built.loss_fn, _tokens(seq_len), f"sequence of {seq_len} tokens", rows_per_gpu=16
    )


def resnet(*, depth: int = 50, size: int = 224, n_classes: int = 1000) -> Subject:
    """A ResNet on square images; its statistics are over the whole batch."""
    built = build({"family": "resnet", "depth": depth, "n_classes": n_classes})
    return Subject("resnet", built.factory, built.loss_fn, _images(size), f"image of {size} x {size}", rows_per_gpu=32)


def vit(*, layers: int = 24, d_model: int = 1024, size: int = 224, n_classes: int = 1000) -> Subject:
    """A vision transformer with unrolled blocks that keep their activations; heads of width 64."""
    sizes = {"image_size": size, "patch_size": 16, "n_classes": n_classes, "n_layer": layers, "d_model": d_model}
    built = build({"family": "vit", **sizes, "n_head": d_model // 64})
    return Subject("vit", built.factory, built.loss_fn, _images(size), f"image of {size} x {size}", rows_per_gpu=32)


class Chain(nnx.Module):
    """Products with an activation in between, and nothing else."""

    def __init__(self, layers: int, d_model: int, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(d_model, d_model, rngs=rngs) for _ in range(layers)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[rows, d_model]` -> the same."""
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


def chain(*, layers: int = 12, d_model: int = 8192, rows: int = 4096) -> Subject:
    """A multilayer perceptron."""
    batch = lambda rows: {"x": jax.ShapeDtypeStruct((rows, d_model), jnp.float32)}
    loss_fn = lambda model, batch: (model(batch["x"]).astype(jnp.float32) ** 2).mean()
    return Subject("chain", lambda rngs: Chain(layers, d_model, rngs), loss_fn, batch, "row", rows_per_gpu=rows)


class Experts(nnx.Module):
    """A residual layer whose every token goes to one of several experts, up to what each has room for."""

    def __init__(self, n_experts: int, d_model: int, rngs: nnx.Rngs):
        make = nnx.initializers.lecun_normal(batch_axis=0)
        self.route = nnx.Linear(d_model, n_experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(make(rngs.params(), (n_experts, d_model, 4 * d_model)))
        self.down = nnx.Param(make(rngs.params(), (n_experts, 4 * d_model, d_model)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[tokens, d_model]` -> the same; tokens for which an expert has no room pass unchanged."""
        weights = jax.nn.softmax(self.route(x).astype(jnp.float32))
        n_experts, chosen = weights.shape[1], weights.argmax(-1)
        capacity = 5 * len(x) // (4 * n_experts)
        to = jax.nn.one_hot(chosen, n_experts, dtype=jnp.int32)
        place = jax.nn.one_hot((jnp.cumsum(to, 0) * to).sum(-1) - 1, capacity, dtype=x.dtype)
        sent = to.astype(x.dtype)[:, :, None] * place[:, None, :]  # [tokens, experts, capacity]
        inputs = jnp.einsum("tec,td->ecd", sent, x)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inputs, self.up[...])), self.down[...])
        gate = jnp.take_along_axis(weights, chosen[:, None], 1).astype(x.dtype)
        return x + gate * jnp.einsum("tec,ecd->td", sent, made)


class MixtureOfExperts(nnx.Module):
    """Such layers one after another."""

    def __init__(self, layers: int, n_experts: int, d_model: int, rngs: nnx.Rngs):
        self.layers = nnx.List([Experts(n_experts, d_model, rngs) for _ in range(layers)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[tokens, d_model]` -> the same."""
        for layer in self.layers:
            x = layer(x)
        return x


def experts(*, layers: int = 6, n_experts: int = 8, d_model: int = 2048, tokens: int = 4096) -> Subject:
    """A mixture of experts, every token to one of them."""
    batch = lambda rows: {"x": jax.ShapeDtypeStruct((rows, d_model), jnp.float32)}
    model = lambda rngs: MixtureOfExperts(layers, n_experts, d_model, rngs)
    loss_fn = lambda model, batch: (model(batch["x"]).astype(jnp.float32) ** 2).mean()
    return Subject("experts", model, loss_fn, batch, "token", rows_per_gpu=tokens)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "gpt": gpt,
    "gpt-unrolled": lambda: gpt(scan_layers=False),
    "llama": llama,
    "resnet": resnet,
    "lstm": lstm,
}
"""Of the sizes that are measured."""

_SMALL: dict[str, Any] = {"layers": 3, "d_model": 512, "seq_len": 256, "vocab_size": 8192}
SMALL_SUBJECTS: dict[str, Callable[[], Subject]] = {
    "gpt": lambda: gpt(**_SMALL),
    "gpt-unrolled": lambda: gpt(**_SMALL, scan_layers=False),
    "llama": lambda: llama(**_SMALL),
    "resnet": lambda: resnet(depth=18, size=64),
    "lstm": lambda: lstm(**_SMALL | {"layers": 2}),
}
"""The same, small enough to compile in seconds."""


def _decoder(name: str, sizes: Mapping[str, Any]) -> Subject:
    built = build(sizes)
    seq_len = sizes["seq_len"]
    return Subject(
        name=name,
        model=built.factory,
        loss_fn=built.loss_fn,
        batch=_tokens(seq_len),
        row=f"sequence of {seq_len} tokens",
        stacked="h" if sizes["scan_layers"] else None,
    )


def _images(size: int) -> Callable[[int], Any]:
    return lambda rows: {
        "image": jax.ShapeDtypeStruct((rows, size, size, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }


def _tokens(seq_len: int) -> Callable[[int], Any]:
    return lambda rows: {"tokens": jax.ShapeDtypeStruct((rows, seq_len + 1), jnp.int32)}
