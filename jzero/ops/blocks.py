"""Attention over blocks of queries and keys with an online softmax: O(T) memory on every device, exact.

Scores exist for one pair of blocks at a time; what remains of a pass is its output and one log-sum-exp a query, from
which the backward pass computes them again (Dao et al. 2022, "FlashAttention", algorithms 1 and 4; Rabe and Staats
2021). Pairs that cannot see each other are left out before anything is compiled.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from jzero.ops.visibility import Places, Rule, block_pairs, visible

BLOCK = 256
"""Tokens in a block: scores of 256 x 256 are large enough for matrix units and small beside a layer's activations."""

UNSEEN = -1e30
"""In the place of minus infinity, which would make NaN of a query that has seen nothing yet."""


class Form(NamedTuple):
    """What is fixed before the program runs.

    Attributes:
        rule: who sees whom.
        in_order: see `block_pairs`.
        scale: scores are products times this.
        softcap: scores become `softcap * tanh(scores / softcap)`; None for as they are.
        dropout: the share of the weights that are dropped.
        q_size: queries in a block.
        k_size: keys in a block.
    """

    rule: Rule
    in_order: bool
    scale: float
    softcap: float | None
    dropout: float
    q_size: int
    k_size: int


class Inputs(NamedTuple):
    """What attention is of, with a dimension for the query heads that share a key head.

    Attributes:
        q: `[B, K, G, T, h]`.
        k: `[B, K, S, h]`.
        v: `[B, K, S, h_v]`.
        bias: `[B or 1, K or 1, G or 1, T or 1, S]`, added to the scores; or None.
        queries: where the queries stand.
        keys: where the keys stand.
        key: random bits for dropout, as `jax.random.key_data`; or None.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: jax.Array | None
    queries: Places
    keys: Places
    key: jax.Array | None


class Block(NamedTuple):
    """One pair of blocks: the parts of `Inputs` and, of the scores, what the backward pass needs again.

    Attributes:
        q: `[B, K, G, n, h]`.
        k: `[B, K, n, h]`.
        v: `[B, K, n, h_v]`.
        scores: `f32[B, K, G, n, n]`, `UNSEEN` where a query does not see a key.
        seen: `bool[B or 1, 1, 1, n, n]`; None if everything is.
        slope: of the soft cap, `f32[B, K, G, n, n]`; None without.
        kept: of the weights after dropout, 0 or 1 / (1 - rate); None without.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    scores: jax.Array
    seen: jax.Array | None
    slope: jax.Array | None
    kept: jax.Array | None


def blockwise(form: Form, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """Attention of padded, grouped arrays: lengths are multiples of the sizes of blocks.

    Returns:
        The output `[B, K, G, T, h_v]` in the dtype of `v`, and the log-sum-exp of each query's scores,
        `f32[B, K, G, T]`, minus infinity for one that sees nothing.
    """
    return cast(tuple[jax.Array, jax.Array], _blockwise(form, inputs))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(form: Form, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    return _forward(form, inputs)[0]


def _forward(form: Form, inputs: Inputs) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    rows = inputs.q.shape[:-1]
    start = (
        jnp.zeros((*rows, inputs.v.shape[-1]), jnp.float32),
        jnp.full(rows, UNSEEN, jnp.float32),
        jnp.zeros(rows, jnp.float32),
    )

    def pair(carry, i, j):
        out, most, total = (_part(x, i, form.q_size, axis=3) for x in carry)
        block = _block(form, inputs, i, j)
        new_most = jnp.maximum(most, block.scores.max(axis=-1))
        shrink = jnp.exp(most - new_most)
        weights = _hidden(block, jnp.exp(block.scores - new_most[..., None]))
        total = total * shrink + weights.sum(axis=-1)
        seen = _dropped(block, weights).astype(block.v.dtype)
        out = out * shrink[..., None] + _product("bkgqs,bksd->bkgqd", seen, block.v)
        new = (out, new_most, total)
        return tuple(_put(x, part, i, form.q_size, axis=3) for x, part in zip(carry, new, strict=True))

    out, most, total = _over_pairs(form, inputs, pair, start)
    out = (out / jnp.where(total > 0, total, 1)[..., None]).astype(inputs.v.dtype)
    lse = jnp.where(total > 0, most + jnp.log(jnp.where(total > 0, total, 1)), -jnp.inf)
    return (out, lse), (inputs, out, lse)


def _backward(form: Form, kept: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple[Inputs]:
    inputs, out, lse = kept
    grad_out, grad_lse = cotangents
    # d scores = weights * (d weights - the mean of d weights under the weights), which one number a query carries.
    mean = (grad_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - grad_lse
    zeros = lambda x: None if x is None else jnp.zeros(x.shape, jnp.float32)

    def pair(carry, i, j):
        grad_q, grad_k, grad_v, grad_bias = carry
        block = _block(form, inputs, i, j)
        grad, center, log_total = (_part(x, i, form.q_size, axis=3) for x in (grad_out, mean, lse))
        weights = _hidden(block, jnp.exp(block.scores - log_total[..., None]))
        grad_v = _add(grad_v, _product("bkgqs,bkgqd->bksd", _dropped(block, weights).astype(grad.dtype), grad), j, form)
        grad_weights = _dropped(block, _product("bkgqd,bksd->bkgqs", grad, block.v))
        grad_scores = weights * (grad_weights - center[..., None])
        if grad_bias is not None:
            grad_bias = _add_bias(grad_bias, grad_scores, i, j, form)
        if block.slope is not None:
            grad_scores = grad_scores * block.slope
        grad_scores = (grad_scores * form.scale).astype(block.q.dtype)
        grad_q = _put(
            grad_q,
            _part(grad_q, i, form.q_size, axis=3) + _product("bkgqs,bksd->bkgqd", grad_scores, block.k),
            i,
            form.q_size,
            axis=3,
        )
        grad_k = _add(grad_k, _product("bkgqs,bkgqd->bksd", grad_scores, block.q), j, form)
        return grad_q, grad_k, grad_v, grad_bias

    grads = _over_pairs(form, inputs, pair, tuple(map(zeros, inputs[:4])))
    grad_q, grad_k, grad_v, grad_bias = (
        None if g is None else g.astype(x.dtype) for g, x in zip(grads, inputs[:4], strict=True)
    )
    return (Inputs(grad_q, grad_k, grad_v, grad_bias, None, None, None),)  # pyright: ignore[reportArgumentType]


_blockwise.defvjp(_forward, _backward)


def _over_pairs(form: Form, inputs: Inputs, pair: Callable, start: tuple) -> tuple:
    """Runs `pair(carry, i, j)` for the pairs of blocks, in a loop if there is more than one."""
    sizes = (form.q_size, form.k_size)
    n_blocks = (inputs.q.shape[3] // form.q_size, inputs.k.shape[2] // form.k_size)
    pairs = block_pairs(form.rule, n_blocks, sizes, in_order=form.in_order)
    if len(pairs) == 1:
        return pair(start, *pairs[0])
    columns: Sequence[jax.Array] = [jnp.array(column, jnp.int32) for column in zip(*pairs, strict=True)]
    return jax.lax.scan(lambda carry, at: (pair(carry, *at), None), start, tuple(columns))[0]


def _block(form: Form, inputs: Inputs, i: jax.Array, j: jax.Array) -> Block:
    q = _part(inputs.q, i, form.q_size, axis=3)
    k, v = (_part(x, j, form.k_size, axis=2) for x in (inputs.k, inputs.v))
    scores, slope = _product("bkgqd,bksd->bkgqs", q, k) * form.scale, None
    if form.softcap is not None:
        tanh = jnp.tanh(scores / form.softcap)
        scores, slope = form.softcap * tanh, 1 - tanh * tanh
    if inputs.bias is not None:
        scores += _bias_part(inputs.bias, i, j, form).astype(jnp.float32)
    queries, keys = inputs.queries.block(i * form.q_size, form.q_size), inputs.keys.block(j * form.k_size, form.k_size)
    seen = visible(form.rule, queries, keys)
    if seen is not None:
        seen = seen[:, None, None]
        scores = jnp.where(seen, scores, UNSEEN)
    return Block(q, k, v, scores, seen, slope, _kept(form, inputs.key, i, j, scores.shape))


def _kept(form: Form, key: jax.Array | None, i: jax.Array, j: jax.Array, shape: tuple[int, ...]) -> jax.Array | None:
    if key is None:
        return None
    own = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), i), j)
    return jax.random.bernoulli(own, 1 - form.dropout, shape).astype(jnp.float32) / (1 - form.dropout)


def _hidden(block: Block, weights: jax.Array) -> jax.Array:
    return weights if block.seen is None else jnp.where(block.seen, weights, 0)


def _dropped(block: Block, weights: jax.Array) -> jax.Array:
    return weights if block.kept is None else weights * block.kept


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _part(x: jax.Array, i: jax.Array | int, size: int, axis: int) -> jax.Array:
    if x.shape[axis] == size:
        return x
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)


def _put(x: jax.Array, part: jax.Array, i: jax.Array | int, size: int, axis: int) -> jax.Array:
    if x.shape[axis] == size:
        return part
    return jax.lax.dynamic_update_slice_in_dim(x, part, i * size, axis)


def _add(total: jax.Array, part: jax.Array, j: jax.Array | int, form: Form) -> jax.Array:
    return _put(total, _part(total, j, form.k_size, axis=2) + part, j, form.k_size, axis=2)


def _bias_part(bias: jax.Array, i: jax.Array | int, j: jax.Array | int, form: Form) -> jax.Array:
    rows = bias if bias.shape[3] == 1 else _part(bias, i, form.q_size, axis=3)
    return _part(rows, j, form.k_size, axis=4)


def _add_bias(total: jax.Array, grad: jax.Array, i: jax.Array | int, j: jax.Array | int, form: Form) -> jax.Array:
    """Adds a pair's gradient to that of the bias, summed over what the bias is the same for."""
    shared = [d for d in range(4) if total.shape[d] == 1]
    grad = grad.sum(axis=shared, keepdims=True)
    start = [0, 0, 0, 0 if total.shape[3] == 1 else i * form.q_size, j * form.k_size]
    part = jax.lax.dynamic_slice(total, start, grad.shape) + grad
    return jax.lax.dynamic_update_slice(total, part, start)
