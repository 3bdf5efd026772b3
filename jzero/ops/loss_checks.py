"""What `jzero.cross_entropy` refuses."""

import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from jzero.errors import ModelError

HeadLayout: TypeAlias = Literal["vd", "dv"]
"""Whether the output layer is `[vocab, d]`, as an embedding's table is, or `[d, vocab]`."""


def check_options(
    head_layout: HeadLayout,
    ignore_index: int | None,
    z_loss: float,
    softcap: float | None,
    chunk_tokens: int | None,
) -> None:
    if head_layout not in ("vd", "dv"):
        raise ModelError(
            f"cross_entropy: head_layout must be 'vd', a head [vocab, d], or 'dv', one [d, vocab], not {head_layout!r}."
        )
    if ignore_index is not None and not _is_whole(ignore_index):
        raise ModelError(f"cross_entropy: ignore_index must be a whole number, not {ignore_index!r}.")
    if chunk_tokens is not None and not (_is_whole(chunk_tokens) and chunk_tokens > 0):
        raise ModelError(f"cross_entropy: chunk_tokens must be a positive whole number, not {chunk_tokens!r}.")
    if not (_is_number(z_loss) and 0 <= z_loss < math.inf):
        raise ModelError(f"cross_entropy: z_loss must be a number from 0 up, not {z_loss!r}.")
    if softcap is not None and not (_is_number(softcap) and 0 < softcap < math.inf):
        raise ModelError(f"cross_entropy: softcap must be a positive number, or None for no cap, not {softcap!r}.")


def check_arrays(hidden: jax.Array, head: jax.Array, targets: jax.Array, head_layout: HeadLayout) -> None:
    for name, x in {"hidden": hidden, "head": head}.items():
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ModelError(f"cross_entropy: {name} is {x.dtype}; it must be floating.")
    if hidden.dtype != head.dtype and jnp.finfo(hidden.dtype).bits >= jnp.finfo(head.dtype).bits:
        raise ModelError(
            f"cross_entropy: hidden is {hidden.dtype} and head {head.dtype}; cast one of them, so that both are alike."
        )
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ModelError(f"cross_entropy: targets are {targets.dtype}; they must be integers.")
    if hidden.ndim < 1 or hidden.shape[:-1] != targets.shape:
        raise ModelError(
            f"cross_entropy: hidden has shape {hidden.shape} and targets {targets.shape}; hidden must have "
            "one dimension more, and the others alike."
        )
    if not targets.size:
        raise ModelError(f"cross_entropy: hidden has shape {hidden.shape}; it must have at least one token.")
    if head.ndim != 2 or head.shape[head_layout.index("d")] != hidden.shape[-1]:
        wanted = {"vd": f"[vocab, {hidden.shape[-1]}]", "dv": f"[{hidden.shape[-1]}, vocab]"}[head_layout]
        raise ModelError(
            f"cross_entropy: head has shape {head.shape}; hidden has width {hidden.shape[-1]}, so with head_layout "
            f"{head_layout!r} it must be {wanted}."
        )


def check_optional_arrays(
    bias: jax.Array | None, mask: jax.Array | None, bias_shape: tuple[int, ...], mask_shape: tuple[int, ...]
) -> None:
    if bias is not None and not (jnp.issubdtype(bias.dtype, jnp.floating) and bias.shape == bias_shape):
        raise ModelError(
            f"cross_entropy: bias is {bias.dtype} of shape {bias.shape}; it must be floating of shape {bias_shape}."
        )
    if mask is not None and not (
        mask.shape == mask_shape
        and any(jnp.issubdtype(mask.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
    ):
        raise ModelError(
            f"cross_entropy: mask is {mask.dtype} of shape {mask.shape}; it must be bool or numbers, of the shape of "
            f"targets, {mask_shape}."
        )


def _is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
