"""Gather at use: evaluates the jaxpr of any function with sharded parameters standing in for full ones.

The function is traced with full shapes. Then each equation is applied in turn: equations on data alone as they are,
equations that only rearrange a parameter lazily, and the first one that mixes a parameter with data as a unit that
gathers, computes and drops. Whatever this does not understand is gathered in front of its use: slower, never wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core import primitives

from jzero import compat
from jzero.collectives import Wire
from jzero.gather.lazy import Lazy
from jzero.gather.products import apply_primitive
from jzero.gather.units import primitive_unit, remat_region

INLINED = frozenset({primitives.jit_p, primitives.closed_call_p, primitives.call_p})
"""Calls that only give a name to a piece of code."""


def gather_at_use(
    fn: Callable, placements: Any, wire: Wire, *, casts: Any, trainable: Any, wholes: Any | None = None
) -> Callable:
    """Turns a function of full parameters into one of sharded parameters, for use inside `shard_map`.

    Args:
        fn: `fn(params, *args)`, written without a thought of sharding.
        placements: pytree of `Placement` like `params`; leaves with `dim=None` are passed whole.
        wire: how gradients travel.
        casts: pytree of tuples of dtypes like `params`: what each leaf is cast to before it is gathered.
        trainable: pytree of bool like `params`: whether a leaf gets a gradient.
        wholes: the parameters gathered in advance, a pytree like `params`; then only gradients travel, at each use.

    Returns:
        `sharded_fn(params_sharded, *args)` with the same results. Differentiated in reverse mode it gathers each
        parameter again in the backward pass, and the gradient of a sharded leaf is already summed over the mesh and
        scattered; that of a whole leaf is the device's own, not summed.
    """

    def sharded_fn(params_sharded: Any, *args: Any) -> Any:
        leaves, treedef = jax.tree.flatten(params_sharded)

        given = [None] * len(leaves) if wholes is None else treedef.flatten_up_to(wholes)
        flat = [treedef.flatten_up_to(t) for t in (placements, casts, trainable)]
        values = [
            Lazy(shard, placement, wire, cast, None if placement.dim is None else whole, trainable=train)
            for shard, placement, cast, train, whole in zip(leaves, *flat, given, strict=True)
        ]
        program, out_shape = compat.trace(fn, treedef.unflatten([v.gathered_shape for v in values]), *args)
        outs = evaluate(program, [*values, *jax.tree.leaves(args)])
        return jax.tree.structure(out_shape).unflatten(outs)

    return sharded_fn


def evaluate(program: Any, operands: Sequence[Any], gathered: dict[Any, jax.Array] | None = None) -> list[jax.Array]:
    """Evaluates a jaxpr on operands of which some may be `Lazy`.

    Args:
        program: a jaxpr, closed or open, or a `compat.Subprogram`.
        operands: one value per input.
        gathered: inside a rematerialised region, what has been gathered there already; it marks such a region.

    Returns:
        One array per output.
    """
    return [_full(x, gathered) for x in _evaluate(program, operands, gathered)]


def _evaluate(program: Any, operands: Sequence[Any], gathered: dict[Any, jax.Array] | None) -> list[Any]:
    jaxpr, consts = compat.subprogram(program)
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    for eqn in jaxpr.eqns:
        values = [v.val if isinstance(v, jex_core.Literal) else env[v] for v in eqn.invars]
        env.update(zip(eqn.outvars, _apply(eqn, values, gathered), strict=True))
    return [v.val if isinstance(v, jex_core.Literal) else env[v] for v in jaxpr.outvars]


def _apply(eqn: Any, operands: list[Any], gathered: dict[Any, jax.Array] | None) -> list[Any]:
    lazies = [x for x in operands if isinstance(x, Lazy)]
    if not lazies:
        return compat.bind(eqn, operands)
    if eqn.primitive in INLINED:
        return _evaluate(eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"], operands, gathered)
    if eqn.primitive is primitives.remat_p:
        return remat_region(eqn, operands, lambda jaxpr, xs: evaluate(jaxpr, xs, gathered={}))
    if eqn.primitive is primitives.scan_p:
        return _scan(eqn, operands, gathered)
    if len(operands) == 1 and (followed := lazies[0].follow(eqn)):
        return [followed]
    if gathered is not None or compat.holds_jaxprs(eqn) or all(x.placement.dim is None for x in lazies):
        return apply_primitive(eqn, [_full(x, gathered) for x in operands])
    return primitive_unit(eqn, operands)


def _full(x: Any, gathered: dict[Any, jax.Array] | None) -> Any:
    """The value of an operand; inside a rematerialised region each parameter is gathered once."""
    if not isinstance(x, Lazy):
        return x
    if gathered is None:
        return x.full()
    key = (id(x.shard), x.casts)
    if key not in gathered:
        gathered[key] = x.unreplayed().full()
    return x.replayed(gathered[key])


def _scan(eqn: Any, operands: list[Any], gathered: dict[Any, jax.Array] | None) -> list[Any]:
    """A loop over stacked parameters slices their shards and gathers inside its body; other lazy operands are gathered
    first.

    A parameter that every iteration uses is gathered before the loop: once per pass, not once per iteration.
    """
    n_consts, n_carry = compat.scan_arity(eqn)
    first_x = n_consts + n_carry
    lazy_xs = {
        i: x
        for i, x in enumerate(operands)
        if i >= first_x and isinstance(x, Lazy) and not x.replay and x.placement.dim != 0
    }
    if not lazy_xs:
        return compat.bind(eqn, [_full(x, gathered) for x in operands])
    values = [x.parts if i in lazy_xs else _full(x, gathered) for i, x in enumerate(operands)]
    consts, carry, xs = values[:n_consts], values[n_consts:first_x], values[first_x:]

    def body(carry, xs):
        slices = [lazy_xs[i].scan_slice(x) if i in lazy_xs else x for i, x in enumerate(xs, first_x)]
        # The body is differentiated iteration by iteration, so inside it even a rematerialised region starts afresh.
        outs = evaluate(eqn.params["jaxpr"], [*consts, *carry, *slices])
        return outs[:n_carry], outs[n_carry:]

    p = eqn.params
    carry, ys = jax.lax.scan(body, carry, xs, length=p["length"], reverse=p["reverse"], unroll=p["unroll"])
    return [*carry, *ys]
