"""The two ways a gathered parameter is used: by one primitive, and inside a rematerialised region."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives

from jzero import compat
from jzero.gather.lazy import Lazy, Parts
from jzero.gather.products import apply_primitive


def is_inexact(x: Any) -> bool:
    """Whether a value can carry a gradient."""
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _in_order(operands: Sequence[Any], for_lazies: Sequence[Any], for_others: Sequence[Any]) -> list[Any]:
    """Replaces the lazy operands and the others, each group in its own order, and keeps their places."""
    lazy, other = iter(for_lazies), iter(for_others)
    return [next(lazy if isinstance(x, Lazy) else other) for x in operands]


def primitive_unit(eqn: Any, operands: Sequence[Any]) -> list[jax.Array]:
    """Applies one primitive to operands of which some are lazy: gather, replay, compute.

    The backward pass gathers again, computes both cotangents and scatters the parameter's. What is kept between the two
    passes is the shard, which lasts anyway, and those of the other operands that the cotangents depend on. The
    primitive itself is not computed twice: in the backward pass its value is dead code.

    Args:
        eqn: the equation.
        operands: its operands, at least one of them a `Lazy`.

    Returns:
        The equation's results.
    """
    lazies = [x for x in operands if isinstance(x, Lazy)]
    # Integer and boolean operands ride along; only inexact ones get a cotangent.
    others = [x for x in operands if not isinstance(x, Lazy)]
    wanted = [x.trainable and is_inexact(x.shard) for x in lazies]
    smooth = [is_inexact(x) for x in others]
    n_lazy = len(lazies)

    def compute(leaves: Sequence[jax.Array], data: Sequence[Any]) -> list[jax.Array]:
        full = [lazy.replayed(leaf) for lazy, leaf in zip(lazies, leaves, strict=True)]
        return apply_primitive(eqn, _in_order(operands, full, data))

    def gathered(parts: Sequence[Parts]) -> list[jax.Array]:
        return [x.gathered(p) for x, p in zip(lazies, parts, strict=True)]

    def cotangents(leaves: Sequence[jax.Array], data: Sequence[Any], grads_out: Sequence[jax.Array]) -> list[Any]:
        primals = [*leaves, *data]
        moving = [i for i, m in enumerate([*wanted, *smooth]) if m]

        def of_moving(*xs: jax.Array) -> list[jax.Array]:
            full = list(primals)
            for i, x in zip(moving, xs, strict=True):
                full[i] = x
            return [y for y in compute(full[:n_lazy], full[n_lazy:]) if is_inexact(y)]

        _, vjp = jax.vjp(of_moving, *[primals[i] for i in moving])
        return list(vjp(list(grads_out)))

    shapes = [x.gathered_shape for x in lazies]
    outs = jax.eval_shape(compute, shapes, others)
    carries_grad = [is_inexact(y) for y in outs]
    needed = [False] * len(others)
    if any(carries_grad):
        grad_shapes = [y for y, g in zip(outs, carries_grad, strict=True) if g]
        needed = compat.used_inputs(cotangents, shapes, others, grad_shapes)[n_lazy : n_lazy + len(others)]

    @jax.custom_vjp
    def unit(parts, data):
        return compute(gathered(parts), data)

    def forward(parts, data):
        return unit(parts, data), (parts, [x for x, n in zip(data, needed, strict=True) if n])

    def backward(residuals, grads_out):
        parts, kept = residuals
        grads_out = [g for g, c in zip(grads_out, carries_grad, strict=True) if c]
        if any(x.whole is None for x in lazies):
            # Or the compiler would find the forward pass's gather equal to this one and keep its result alive.
            parts, grads_out = jax.lax.optimization_barrier((parts, grads_out))
        kept = iter(kept)
        data = [next(kept) if n else jnp.zeros_like(x) for x, n in zip(others, needed, strict=True)]
        grads = iter(cotangents(gathered(parts), data, grads_out))
        grads_parts = [(x.scattered(next(grads)) if w else None, None) for x, w in zip(lazies, wanted, strict=True)]
        return grads_parts, [next(grads) if s else None for s in smooth]

    unit.defvjp(forward, backward)
    return unit([x.parts for x in lazies], others)


def remat_region(
    eqn: Any, operands: Sequence[Any], evaluate: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[jax.Array]:
    """Applies a `jax.checkpoint` region to operands of which some are lazy.

    Each parameter is gathered once inside the region, and once more by the region's own recomputation. The user's
    policy stays, except that it can never save a gathered parameter.

    Args:
        eqn: the `checkpoint` equation.
        operands: its operands, at least one of them a `Lazy`.
        evaluate: evaluates a jaxpr on operands, gathering each lazy one once.

    Returns:
        The region's results.
    """
    lazies = [x for x in operands if isinstance(x, Lazy)]
    others = [x for x in operands if not isinstance(x, Lazy)]
    policy = eqn.params["policy"]

    def saves(primitive: Any, *avals: Any, **params: Any) -> Any:
        return False if primitive is primitives.all_gather_p else policy(primitive, *avals, **params)

    def region(parts, data):
        rebuilt = [lazy.with_parts(p) for lazy, p in zip(lazies, parts, strict=True)]
        return evaluate(eqn.params["jaxpr"], _in_order(operands, rebuilt, data))

    remat = jax.checkpoint(region, policy=policy and saves, prevent_cse=eqn.params["prevent_cse"])
    return remat([x.parts for x in lazies], others)
