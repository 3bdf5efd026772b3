"""Loops over stacked parameters as software pipelines: what travels runs beside the products of another layer.

The loop carries the parameters of the layer that comes next: each iteration starts to gather them, and computes with
those that the one before has gathered. Backward likewise; and gradients that are ready only at the end of an iteration
are carried, whole, into the next one and scattered there. Both loops are written here, under a custom rule, so that
differentiation keeps nothing of what is carried. The last iteration gathers a layer that nobody reads: a body without
that would have to be compiled as well.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp

from jzero.base.types import PyTree
from jzero.gather.unit.deferred import DeferredParam, ParamShards
from jzero.gather.unit.run import Cotangent, Tree, barrier, instantiated, is_zero
from jzero.gather.unit.split_vjp import Function, Operands, Shape, SplitVJP, is_inexact, saving_vjp
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.host_memory import abstract, is_on_host, to_host


@dataclass
class GradSums:
    """Parameters in whose shard's place, which nobody reads, the sum of their gradients so far is given.

    Gradients of several micro-batches are added to it where they arise: a stack of those of one micro-batch alone would
    take as much memory as the sum.

    Attributes:
        leaves: which parameters.
        added: those of them whose gradient, as traced, is the new sum.
    """

    leaves: frozenset[int]
    added: set[int] = field(default_factory=set)


Layer: TypeAlias = int | jax.Array
"""The number of a layer."""


class Inputs(NamedTuple):
    """What goes into a loop, or into one iteration of it, besides the carry and what is gathered.

    Attributes:
        passed: leaf -> arrays of the parameters that the body does not gather itself; sliced.
        xs: what else is sliced.
        consts: what every iteration sees.
    """

    passed: dict[int, ParamShards]
    xs: list[jax.Array]
    consts: list[jax.Array]


@dataclass(frozen=True)
class Body:
    """One iteration, and how often it runs.

    Attributes:
        compute: `([*gathered, *leaves of Inputs], carry) -> [*carry, *ys]`.
        flows: `(Inputs of bools, carry of bools) -> bools`: whether a gradient may flow to each output.
        gather_keys: what is gathered, one layer of each.
        trainable: for each of them, whether it gets a gradient.
        length: how many iterations there are.
        reverse: whether they go from the last layer to the first.
        unroll: how many of them the compiled loop takes together.
    """

    compute: Function
    flows: Callable[[Inputs, list[bool]], list[bool]]
    gather_keys: Sequence[DeferredParam]
    trainable: Sequence[bool]
    length: int
    reverse: bool
    unroll: int

    def layer(self, i: Layer, further: int) -> jax.Array:
        """The layer some iterations further than layer `i`, or the last one on the way."""
        return jnp.clip(i - further if self.reverse else i + further, 0, self.length - 1)

    def scan(self, iteration: Callable, state: PyTree, xs: PyTree, *, backward: bool = False) -> PyTree:
        """Runs iterations in one of the two directions; each gets the number of its layer too."""
        layers = jnp.arange(self.length, dtype=jnp.int32)
        reverse = self.reverse is not backward
        return jax.lax.scan(iteration, state, (layers, xs), self.length, reverse=reverse, unroll=self.unroll)


def pipelined_scan(
    body: Body,
    stacks: dict[int, ParamShards],
    inputs: Inputs,
    carry: list[jax.Array],
    grad_reduce: GradReduceConfig,
    sums: GradSums | None = None,
) -> list[jax.Array]:
    """Runs a loop.

    Args:
        body: one iteration.
        stacks: leaf -> arrays of all layers of what `body` gathers.
        inputs: its other inputs.
        carry: its first carry.
        grad_reduce: how gradients travel.
        sums: what gradients are added to.

    Returns:
        The last carry, and the other outputs, stacked.
    """

    def call_forward(*operands: PyTree) -> tuple[list[jax.Array], Callable]:
        is_primal = lambda x: hasattr(x, "perturbed")
        moves = jax.tree.map(lambda x: x.perturbed and is_inexact(x.value), operands, is_leaf=is_primal)
        stacks, inputs, carry = jax.tree.map(lambda x: x.value, operands, is_leaf=is_primal)
        split_vjp = _split_vjp(body, inputs, carry, *moves[1:])
        outs, kept = _forward(body, split_vjp.forward, stacks, inputs, carry)
        pull = functools.partial(_backward, body, split_vjp, len(carry), grad_reduce, sums)
        return outs, jax.tree_util.Partial(pull, stacks, inputs, kept)

    call = jax.custom_vjp(lambda *operands: _forward(body, lambda *x: (body.compute(*x), []), *operands)[0])
    call.defvjp(call_forward, lambda pull, grads: pull(grads), symbolic_zeros=True)
    return call(stacks, inputs, carry)


def _split_vjp(
    body: Body, inputs: Inputs, carry: list[jax.Array], inputs_move: Inputs, carry_moves: list[bool]
) -> SplitVJP:
    """The halves of one iteration. What the backward pass has at hand anyway is not kept for it."""
    moving, before = carry_moves, None
    while moving != before:  # what one iteration makes differentiable comes into the next one
        before = moving
        after = body.flows(inputs_move, before)[: len(carry)]
        moving = [m or (a and is_inexact(x)) for m, a, x in zip(before, after, carry, strict=True)]
    passed, xs = jax.tree.map(lambda x: _shape(x, x.shape[1:]), (inputs.passed, inputs.xs))
    at_hand = inputs._replace(passed=passed, xs=xs, consts=[_shape(x, x.shape) for x in inputs.consts])
    operands = Operands(
        full=[*(key.shape for key in body.gather_keys), *jax.tree.leaves(at_hand)],
        trainable=[*body.trainable, *jax.tree.leaves(inputs_move)],
        others=[_shape(x, x.shape) for x in carry],
        moving=moving,
    )
    return saving_vjp(body.compute, operands, recomputes=False, n_gathered=len(body.gather_keys))


def _forward(
    body: Body, compute: Callable, stacks: dict[int, ParamShards], inputs: Inputs, carry: list[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The forward loop: its outputs, and what `compute` keeps of each iteration."""

    def iteration(state: PyTree, x: PyTree) -> PyTree:
        (carry, here), (i, (passed, xs)) = state, x
        following = _gathered(body, stacks, body.layer(i, 1))
        outs, kept = compute(_full(body, stacks, here, i, Inputs(passed, xs, inputs.consts)), carry)
        return (outs[: len(carry)], following), (outs[len(carry) :], kept)

    first = _gathered(body, stacks, body.length - 1 if body.reverse else 0)
    (carry, _), (ys, kept) = body.scan(iteration, (carry, first), (inputs.passed, inputs.xs))
    return [*carry, *ys], kept


class _State(NamedTuple):
    """What the backward loop carries from one iteration into the next.

    Attributes:
        grads_carry: output of the body -> gradient of that part of the carry.
        grads_consts: leaf of `Inputs` -> gradient so far of what every iteration sees.
        here: what has been gathered of this layer.
        waiting: gradients of the layer before, whole, in the order of `_Backward.late`.
        stacked: those of all layers, scattered.
        sums: leaf -> the sum of other gradients of all layers, scattered, over this and earlier micro-batches.
    """

    grads_carry: dict[int, jax.Array]
    grads_consts: dict[int, jax.Array]
    here: list[jax.Array]
    waiting: list[jax.Array]
    stacked: list[jax.Array]
    sums: dict[int, jax.Array]


@dataclass(frozen=True, eq=False)
class _Backward:
    """The backward loop.

    Attributes:
        body, split_vjp, grad_reduce, stacks, inputs: see `_backward`.
        late: see `_late`.
        adds: the leaves whose gradient is added to what is given in their shard's place.
    """

    body: Body
    split_vjp: SplitVJP
    grad_reduce: GradReduceConfig
    stacks: dict[int, ParamShards]
    inputs: Inputs
    late: list[int]
    adds: frozenset[int]

    @property
    def n_gathered(self) -> int:
        return len(self.body.gather_keys)

    @property
    def n_sliced(self) -> int:
        """How many leaves of the inputs are sliced; the others are what every iteration sees."""
        return len(jax.tree.leaves(self.inputs)) - len(self.inputs.consts)

    def start(self, grads_carry: dict[int, jax.Array]) -> _State:
        """What the first iteration gets, that of the last layer."""
        gather_keys, leaves = self.body.gather_keys, jax.tree.leaves(self.inputs)
        moving_consts = [
            k - self.n_gathered for k in self.split_vjp.moving_full if k >= self.n_gathered + self.n_sliced
        ]
        # The barrier, or the compiler would gather the first layer of this loop as early as it likes.
        last = 0 if self.body.reverse else self.body.length - 1
        start, grads_carry = barrier((jnp.int32(last), grads_carry))
        late = [gather_keys[k] for k in self.late]
        return _State(
            grads_carry,
            {k: jnp.zeros_like(leaves[k]) for k in moving_consts},
            _gathered(self.body, self.stacks, start),
            [jnp.zeros(key.shape.shape, key.shape.dtype) for key in late],
            [self._before(key) for key in late],
            {leaf: cast(jax.Array, self.stacks[leaf].shard) for leaf in self.adds - {key.leaf for key in late}},
        )

    def _before(self, key: DeferredParam) -> jax.Array:
        """What the gradients of a parameter are put into, or added to."""
        if key.leaf in self.adds:
            return cast(jax.Array, self.stacks[key.leaf].shard)
        return jnp.zeros((self.body.length, *key.placement.shard_shape), key.dtype)

    def put(self, leaf: int, stacked: jax.Array, grad: jax.Array, i: Layer) -> jax.Array:
        """Puts the gradient of layer `i` into a stack, or adds it to what is there."""
        if leaf in self.adds:
            grad = grad + jax.lax.dynamic_index_in_dim(stacked, i, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(stacked, grad, i, 0)

    def scatter_late(self, stacked: list[jax.Array], waiting: list[jax.Array], i: Layer) -> list[jax.Array]:
        """Scatters the gradients of layer `i` that have waited."""
        keys = [self.body.gather_keys[k] for k in self.late]
        scattered = [key.scattered(grad, self.grad_reduce, "scan") for key, grad in zip(keys, waiting, strict=True)]
        return [self.put(key.leaf, all_, g, i) for key, all_, g in zip(keys, stacked, scattered, strict=True)]

    def iteration(self, state: _State, x: PyTree) -> tuple[_State, PyTree]:
        """One layer: its gradients of what is gathered, and of what is sliced, go out."""
        body, split_vjp, n_gathered = self.body, self.split_vjp, self.n_gathered
        grads_carry, grads_consts, here, waiting, stacked, sums = state
        i, (passed, xs, kept, grads_ys) = x
        following = _gathered(body, self.stacks, body.layer(i, -1))
        sent = following, self.scatter_late(stacked, waiting, body.layer(i, 1))
        given = {**grads_carry, **grads_ys}
        shapes = enumerate(split_vjp.out_shapes)
        cotangents = [given.get(k, jnp.zeros(s.shape, s.dtype)) for k, s in shapes if is_inexact(s)]
        full = _full(body, self.stacks, here, i, Inputs(passed, xs, self.inputs.consts))
        moved, moved_carry = split_vjp.backward(full, kept, cotangents)
        grads = dict(zip(split_vjp.moving_full, moved, strict=True))
        waiting = [grads.pop(k) for k in self.late]
        own = {k: g for k, g in grads.items() if k < n_gathered}
        scattered, sent = _scattered(body, own, sent, self.grad_reduce)
        # Or the scheduler would put the product of the waiting gradient behind the last scatter, and nothing beside it.
        scattered, waiting = barrier((scattered, waiting))
        hosted = {key.leaf for key in body.gather_keys if key.on_host}
        scattered = {leaf: to_host(g) if leaf in hosted else g for leaf, g in scattered.items()}
        sums = {leaf: self.put(leaf, total, scattered.pop(leaf), i) for leaf, total in sums.items()}
        sliced = {k - n_gathered: g for k, g in grads.items() if n_gathered <= k < n_gathered + self.n_sliced}
        grads_consts = {k: total + grads[n_gathered + k] for k, total in grads_consts.items()}
        grads_carry = dict(zip(split_vjp.moving_others, moved_carry, strict=True))
        return _State(grads_carry, grads_consts, sent[0], waiting, sent[1], sums), (scattered, sliced)


def _backward(
    body: Body,
    split_vjp: SplitVJP,
    n_carry: int,
    grad_reduce: GradReduceConfig,
    sums: GradSums | None,
    stacks: dict[int, ParamShards],
    inputs: Inputs,
    kept: list[jax.Array],
    grads_out: Sequence[Cotangent],
) -> tuple[PyTree, PyTree, PyTree]:
    """The gradients of `stacks`, of `inputs` and of the carry."""
    if all(is_zero(g) for g in grads_out):
        return None, None, None
    late = _late(body, split_vjp)
    adds = _adding(body, split_vjp, sums)
    loop = _Backward(body, split_vjp, grad_reduce, stacks, inputs, late, adds)
    grads_carry = {k: instantiated(grads_out[k], split_vjp.out_shapes[k]) for k in split_vjp.moving_others}
    grads_ys = {k: g for k, g in enumerate(grads_out) if k >= n_carry and not is_zero(g)}
    xs = (inputs.passed, inputs.xs, kept, grads_ys)
    state, (scattered, sliced) = body.scan(loop.iteration, loop.start(grads_carry), xs, backward=True)
    first = body.length - 1 if body.reverse else 0
    at_last = loop.scatter_late(state.stacked, state.waiting, first)
    scattered |= {body.gather_keys[k].leaf: g for k, g in zip(late, at_last, strict=True)} | state.sums
    grads_inputs, treedef = {**sliced, **state.grads_consts}, jax.tree.structure(inputs)
    return (
        {leaf: ParamShards(scattered.get(leaf)) for leaf in stacks},
        treedef.unflatten([grads_inputs.get(k) for k in range(treedef.num_leaves)]),
        [state.grads_carry.get(k) for k in range(n_carry)],
    )


def _adding(body: Body, split_vjp: SplitVJP, sums: GradSums | None) -> frozenset[int]:
    """The leaves whose gradients of this loop are added to the given sums, each in one loop only; notes them."""
    if sums is None:
        return frozenset()
    leaves = [key.leaf for key in body.gather_keys]
    moving = {leaves[k] for k in split_vjp.moving_full if k < len(leaves) and leaves.count(leaves[k]) == 1}
    adds = (moving & sums.leaves) - sums.added
    sums.added |= adds
    return frozenset(adds)


def _late(body: Body, split_vjp: SplitVJP) -> list[int]:
    """The gather keys whose gradients are scattered beside the next iteration.

    They are those of the layer's first matrices, as many as make up an eighth of it: their gradients come last in the
    backward pass, when no product of this iteration is left to hide a collective behind. While other gradients are
    scattered, the products of these run. One matrix alone might not do: the compiler makes one product of those with
    one input (queries, keys, values).
    """
    matrices, sizes = _matrices(body), [key.shape.size for key in body.gather_keys]
    before = itertools.accumulate((sizes[i] for i in matrices), initial=0)
    first = [i for i, size in zip(matrices, before, strict=False) if size * 8 < sum(sizes)]
    leaves = [key.leaf for key in body.gather_keys]
    return [
        i
        for i in first
        if i in split_vjp.moving_full and leaves.count(leaves[i]) == 1 and not body.gather_keys[i].on_host
    ]


def _scattered(
    body: Body, grads: dict[int, jax.Array], sent: Tree, grad_reduce: GradReduceConfig
) -> tuple[dict[int, jax.Array], Tree]:
    """Scatters gradients: leaf -> its own, and what is sent before any of a matrix.

    Schedulers put the products of gradients at the end and would send everything beside those few. So what could
    be sent from the start of the iteration has to arrive before the first of these gradients leaves.
    """
    for k in reversed(_matrices(body)):
        if k in grads:
            grads[k], sent = barrier((grads[k], sent))
    scattered: dict[int, jax.Array] = {}
    for k, grad in grads.items():
        g, leaf = body.gather_keys[k].scattered(grad, grad_reduce, "scan"), body.gather_keys[k].leaf
        scattered[leaf] = scattered[leaf] + g if leaf in scattered else g
    return scattered, sent


def _matrices(body: Body) -> list[int]:
    """The numbers of the gather keys that are no vectors."""
    return [i for i, key in enumerate(body.gather_keys) if len(key.placement.shape) > 1]


def _gathered(body: Body, stacks: dict[int, ParamShards], i: Layer) -> list[jax.Array]:
    """What travels of one layer."""
    return [key.gathered(_parts(key, stacks, i), "scan") for key in body.gather_keys if not key.in_advance]


def _full(
    body: Body, stacks: dict[int, ParamShards], gathered: list[jax.Array], i: Layer, inputs: Inputs
) -> list[jax.Array]:
    """The first operand of `Body.compute`."""
    values = iter(gathered)
    full = [key.gathered(_parts(key, stacks, i)) if key.in_advance else next(values) for key in body.gather_keys]
    return [*full, *jax.tree.leaves(inputs)]


def _parts(gather_key: DeferredParam, stacks: dict[int, ParamShards], i: Layer) -> ParamShards:
    """The arrays of one layer; only those that are read."""
    parts = stacks[gather_key.leaf]
    kind = "whole" if gather_key.in_advance else "shard" if gather_key.ready is None else "ready"
    one = jax.lax.dynamic_index_in_dim(getattr(parts, kind), i, keepdims=False)
    return ParamShards(**{"shard": None, kind: one})


def _shape(x: jax.Array, shape: tuple[int, ...]) -> Shape:
    return abstract(shape, x.dtype, on_host=True) if is_on_host(x) else jax.ShapeDtypeStruct(shape, x.dtype)
