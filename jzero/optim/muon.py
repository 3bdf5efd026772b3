"""Muon as DeepSpeed has it: hidden matrices take orthogonal steps, everything else takes Adam's.

Flax keeps a kernel as `[in, out]`, torch as `[out, in]`; what depends on the two is written for Flax here.
"""

import math
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax

from jzero.base.types import Grads, OptState, Params
from jzero.sharding.placement import path_name

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
"""The quintic's coefficients (Jordan et al. 2024); they bring every singular value near 1 in a few steps."""
N_STEPS = 5

NOT_HIDDEN = ("embed", "lm_head")
NOT_HIDDEN_PARTS = {"wte", "wpe", "positions", "head"}

LoopDims = Callable[[str], Collection[int]]
"""From a parameter's dotted name to the dimensions that a loop over layers walks along."""


def is_muon_matrix(name: str, ndim: int) -> bool:
    """Whether a parameter is a hidden matrix, or a stack of them, and not an embedding or a head.

    DeepSpeed tells by `embed` and `lm_head` in the name; other names for the same, such as GPT-2's, count here too.

    Args:
        name: its dotted name.
        ndim: its dimensions without those that a loop over layers walks along.

    Example:
        >>> [is_muon_matrix(n, 2) for n in ("mlp.up.kernel", "token_embed.embedding", "lm_head.kernel", "wte")]
        [True, False, False, False]
    """
    return ndim >= 2 and not any(w in name.lower() for w in NOT_HIDDEN) and not NOT_HIDDEN_PARTS & {*name.split(".")}


def orthogonalize(x: jax.Array) -> jax.Array:
    """Brings the singular values of each matrix near 1 by Newton-Schulz iteration (Jordan et al. 2024).

    Args:
        x: `[..., m, n]`; each matrix for itself.

    Returns:
        An array of the same shape and dtype; the singular values lie in about [0.7, 1.2].

    Example:
        >>> bool((abs(jnp.linalg.svd(orthogonalize(jnp.diag(jnp.array([3.0, 0.5]))))[1] - 1) < 0.35).all())
        True
    """
    a, b, c = NEWTON_SCHULZ
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide / (jnp.linalg.norm(wide, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(N_STEPS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if x.shape[-2] <= x.shape[-1] else wide.mT


def scale_by_deepspeeds_muon(momentum: float, loop_dims: LoopDims) -> optax.GradientTransformation:
    """Averages gradients, looks ahead as Nesterov does, and orthogonalises.

    optax.contrib.scale_by_muon corrects the bias of the average, which changes the direction of the first steps;
    DeepSpeed does not.

    Args:
        momentum: decay of the average.
        loop_dims: where layers are stacked; each layer's matrix is orthogonalised for itself.
    """

    def init(params: Params) -> optax.EmaState:
        return optax.EmaState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def update(updates: Grads, state: OptState, params: Params = None) -> tuple[Grads, optax.EmaState]:
        del params
        ema = optax.tree.update_moment(updates, state.ema, momentum, 1)
        ahead = optax.tree.update_moment(updates, ema, momentum, 1)
        step = jax.tree_util.tree_map_with_path(lambda path, x: _step(x, loop_dims(path_name(path))), ahead)
        return step, optax.EmaState(optax.safe_increment(state.count), ema)

    return optax.GradientTransformation(init, update)


def _step(x: jax.Array, loop_dims: Collection[int]) -> jax.Array:
    """One parameter's orthogonal step; a convolution's window and inputs are one dimension, as in DeepSpeed."""
    if not x.size:
        return x
    front = range(len(loop_dims))
    layers = jnp.moveaxis(x, tuple(loop_dims), tuple(front))
    shape = layers.shape[len(loop_dims) :]
    ratio = shape[-1] / shape[-2]  # torch's rows over its columns
    matrices = layers
    if len(shape) == 4:
        matrices = layers.reshape(*layers.shape[: len(loop_dims)], math.prod(shape[:3]), shape[3])
        ratio = shape[0] / shape[1]
    step = orthogonalize(matrices).reshape(layers.shape) * math.sqrt(max(1.0, ratio))
    return jnp.moveaxis(step, tuple(front), tuple(loop_dims))
