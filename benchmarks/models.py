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
    batch = lambda rows: {
        "image": jax.ShapeDtypeStruct((rows, size, size, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }
    return Subject("resnet", built.factory, built.loss_fn, batch, f"image of {size} x {size}", rows_per_gpu=32)


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


def _tokens(seq_len: int) -> Callable[[int], Any]:
    return lambda rows: {"tokens": jax.ShapeDtypeStruct((rows, seq_len + 1), jnp.int32)}
