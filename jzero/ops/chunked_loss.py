"""Cross entropy from hidden states, a chunk of tokens at a time, so that the logits of all tokens never exist.

Forward, a loop over chunks keeps one number per token, the log of the sum of its exponentials. Backward, a second loop
computes each chunk's logits again and adds the chunk's part to the gradient of the output layer, in float32. The output
layer is a constant of both loops, so that ZeRO stage 3 gathers it once per pass and scatters its gradient once.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jzero.flax.mean import Mean
from jzero.ops.loss_checks import HeadLayout, check_arrays, check_optional_arrays, check_options

CHUNK_BYTES = 256 * 2**20
"""How large the float32 logits of a chunk may be, by default."""

MIN_CHUNK = 128
"""Tokens in a chunk at least, by default: products of fewer rows are slow."""


def cross_entropy(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    head_layout: HeadLayout = "vd",
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    ignore_index: int | None = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
    chunk_tokens: int | None = None,
) -> Mean:
    """Cross entropy of an output layer's logits, in memory that does not grow with tokens times vocabulary.

    It equals the loss of `logits = hidden @ head` to rounding, and so do its gradients. The logits are float32 at every
    dtype. Where they fit into one chunk, they are kept for the backward pass; otherwise they are computed again there.
    It is differentiated in reverse mode, once.

    Args:
        hidden: `[..., T, d]`, floating: what enters the output layer.
        head: the output layer, of the dtype of `hidden`.
        targets: integers `[..., T]`. One that is outside of `0 ... vocab - 1`, and not ignored, is not noticed: its
            token's loss is that of a label whose logit is 0.
        head_layout: `"vd"` for a head `[vocab, d]`, such as an embedding's table; `"dv"` for one `[d, vocab]`.
        bias: floating `[vocab]`, added to the logits.
        mask: `[..., T]`, bool or numbers: the weight of each token's loss.
        ignore_index: targets of this value have no weight; with a `mask`, both count.
        z_loss: adds this times the square of the log of the sum of exponentials, which keeps logits from drifting.
        softcap: logits `x` become `softcap * tanh(x / softcap)`.
        chunk_tokens: tokens in a chunk. By default as many as have 256 MiB of logits, and at least 128.

    Returns:
        The sum of the losses, in nats, and the sum of the weights, without a mask the number of tokens. As a loss it is
        exact over devices and micro-batches with any number of tokens each.

    Raises:
        ModelError: if shapes, dtypes or options do not fit.

    Example:
        >>> hidden, table = jnp.zeros((2, 8, 4)), jnp.zeros((256, 4))
        >>> mask = jnp.arange(8) < jnp.array([[8], [3]])
        >>> loss = cross_entropy(hidden, table, jnp.zeros((2, 8), jnp.int32), mask=mask)
        >>> print(round(float(loss.total / loss.weight), 3), loss.weight)
        5.545 11.0
    """
    check_options(head_layout, ignore_index, z_loss, softcap, chunk_tokens)
    check_arrays(hidden, head, targets, head_layout)
    vocab = head.shape[head_layout.index("v")]
    check_optional_arrays(bias, mask, (vocab,), targets.shape)
    form, layer, n_tokens = _Form(head_layout, z_loss, softcap), _OutputLayer(head, bias), targets.size
    tokens = _Tokens(hidden.reshape(n_tokens, hidden.shape[-1]), targets.reshape(n_tokens))
    chunk = _chunk_size(n_tokens, vocab) if chunk_tokens is None else chunk_tokens
    losses = _token_losses(form, layer, tokens).loss if chunk >= n_tokens else _in_chunks(form, layer, tokens, chunk)
    weights = _weights(targets, mask, ignore_index)
    if weights is None:
        return Mean(losses.sum(), jnp.asarray(n_tokens, jnp.float32))
    return Mean((losses * weights.reshape(n_tokens)).sum(), weights.sum())


class _Form(NamedTuple):
    """What is no array: see `cross_entropy`."""

    head_layout: HeadLayout
    z_loss: float
    softcap: float | None


class _OutputLayer(NamedTuple):
    """What turns hidden states into logits; also the gradient of that."""

    head: jax.Array
    bias: jax.Array | None


class _Tokens(NamedTuple):
    """Some tokens: hidden states `[..., d]` and targets `[...]`."""

    hidden: jax.Array
    targets: jax.Array


class _TokenLosses(NamedTuple):
    """Of each token its loss, and the log of the sum of the exponentials of its logits."""

    loss: jax.Array
    log_sum: jax.Array


class _Kept(NamedTuple):
    """What the backward pass reads. At stage 3 the layer is not kept, but gathered again."""

    layer: _OutputLayer
    tokens: _Tokens
    log_sum: jax.Array


def _weights(targets: jax.Array, mask: jax.Array | None, ignore_index: int | None) -> jax.Array | None:
    """The weight of each token, float32; None if all count alike."""
    weights = None if mask is None else mask.astype(jnp.float32)
    if ignore_index is None:
        return weights
    counted = targets != ignore_index
    return counted.astype(jnp.float32) if weights is None else jnp.where(counted, weights, 0)


def _chunk_size(n_tokens: int, vocab: int) -> int:
    """Tokens in each of the fewest chunks that keep the bound, all about equally long."""
    most = max(MIN_CHUNK, CHUNK_BYTES // (4 * vocab))
    if n_tokens <= most:
        return n_tokens
    even = math.ceil(n_tokens / math.ceil(n_tokens / most))
    return 8 * math.ceil(even / 8)  # what tensor cores like


def _token_losses(form: _Form, layer: _OutputLayer, tokens: _Tokens) -> _TokenLosses:
    """The losses of `[T, d]` tokens, as JAX differentiates them."""
    logits = _logits(form, layer, tokens.hidden)
    if form.softcap is not None:
        logits = form.softcap * jnp.tanh(logits / form.softcap)
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    loss = log_sum - jnp.sum(logits, axis=-1, where=_is_target(tokens.targets, logits.shape[-1]))
    return _TokenLosses(loss + form.z_loss * log_sum**2 if form.z_loss else loss, log_sum)


def _logits(form: _Form, layer: _OutputLayer, hidden: jax.Array) -> jax.Array:
    """`[T, d]` -> float32 `[T, vocab]`, before the soft cap."""
    logits = jnp.einsum(f"td,{form.head_layout}->tv", hidden, layer.head, preferred_element_type=jnp.float32)
    return logits if layer.bias is None else logits + layer.bias.astype(jnp.float32)


def _is_target(targets: jax.Array, vocab: int) -> jax.Array:
    """`[T]` -> bool `[T, vocab]`. By comparison, not by indexing: it fuses, and its gradient is no scatter."""
    return jax.lax.broadcasted_iota(targets.dtype, (*targets.shape, vocab), 1) == targets[:, None]


def _in_chunks(form: _Form, layer: _OutputLayer, tokens: _Tokens, chunk: int) -> jax.Array:
    """The losses of `[T, d]` tokens, by chunks; what the last chunk lacks is filled with zeros."""
    n_tokens, d = tokens.hidden.shape
    filling = -n_tokens % chunk
    hidden, targets = jnp.pad(tokens.hidden, ((0, filling), (0, 0))), jnp.pad(tokens.targets, (0, filling))
    return _chunked(form, layer, hidden.reshape(-1, chunk, d), targets.reshape(-1, chunk)).reshape(-1)[:n_tokens]


def _chunk_losses(form: _Form, layer: _OutputLayer, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """The losses of chunks: `[n_chunks, T, d]` and `[n_chunks, T]` -> `[n_chunks, T]`."""
    return _forward(form, layer, hidden, targets)[0]


def _forward(form: _Form, layer: _OutputLayer, hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    tokens = _Tokens(hidden, targets)
    loss, log_sum = jax.lax.map(lambda chunk: _token_losses(form, layer, chunk), tokens)
    return loss, _Kept(layer, tokens, log_sum)


def _backward(form: _Form, kept: _Kept, grad: jax.Array) -> tuple[_OutputLayer, jax.Array, None]:
    layer = kept.layer
    # Zeros depend on nothing: the compiler could make them at the start of the step.
    zero, grad = jax.lax.optimization_barrier((jnp.zeros((), jnp.float32), grad))
    zeros = jax.tree.map(lambda x: jnp.broadcast_to(zero, x.shape), layer)

    def step(sums: _OutputLayer, chunk: tuple[_Tokens, jax.Array, jax.Array]) -> tuple[_OutputLayer, jax.Array]:
        grad_logits = _grad_logits(form, layer, *chunk)
        grad_bias = None if layer.bias is None else grad_logits.sum(axis=0)
        grad_head, grad_hidden = _grads_of_product(form, layer.head, chunk[0].hidden, grad_logits)
        return jax.tree.map(jnp.add, sums, _OutputLayer(grad_head, grad_bias)), grad_hidden

    sums, grad_hidden = jax.lax.scan(step, zeros, (kept.tokens, kept.log_sum, grad))
    return jax.tree.map(lambda x, like: x.astype(like.dtype), sums, layer), grad_hidden, None


_chunked = jax.custom_vjp(_chunk_losses, nondiff_argnums=(0,))
_chunked.defvjp(_forward, _backward)


def _grad_logits(form: _Form, layer: _OutputLayer, tokens: _Tokens, log_sum: jax.Array, grad: jax.Array) -> jax.Array:
    """Gradients of the losses of `[T, d]` tokens by their logits before the soft cap: float32 `[T, vocab]`."""
    logits, slope = _logits(form, layer, tokens.hidden), None
    if form.softcap is not None:
        capped = jnp.tanh(logits / form.softcap)
        logits, slope = form.softcap * capped, 1 - capped**2
    of_log_sum = grad * (1 + 2 * form.z_loss * log_sum)
    of_logits = jnp.exp(logits - log_sum[:, None]) * of_log_sum[:, None]
    of_logits -= jnp.where(_is_target(tokens.targets, logits.shape[-1]), grad[:, None], 0)
    return of_logits if slope is None else of_logits * slope


def _grads_of_product(
    form: _Form, head: jax.Array, hidden: jax.Array, grad_logits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients by the head, float32 and in its own order, and by `hidden`.

    JAX multiplies float32 gradients of logits with operands of 16 bits, for which GPUs widen the whole head. In bf16
    they are split into two bf16 numbers instead, which sum to them to 16 bits, and are multiplied side by side.
    """
    rows, times = grad_logits, 1
    if head.dtype == jnp.bfloat16:
        # Not by casts there and back, which XLA may leave out.
        high = jax.lax.reduce_precision(grad_logits, exponent_bits=8, mantissa_bits=7)
        rows, times = jnp.concatenate([high, grad_logits - high]).astype(head.dtype), 2
    product = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    grad_hidden = product(rows, head, (((1,), (form.head_layout.index("v"),)), ((), ())))
    grad_hidden = grad_hidden.reshape(times, *hidden.shape).sum(axis=0).astype(hidden.dtype)
    left, right = rows, jnp.concatenate([hidden] * times)
    if form.head_layout == "dv":
        left, right = right, left
    return product(left, right, (((0,), (0,)), ((), ()))), grad_hidden
