"""Cross entropy from hidden states, of which only some logits exist at a time.

Forward, a loop over chunks of tokens keeps two numbers per token: its largest logit, and a sum of exponentials. With
them a logit's gradient needs no other logit, so the backward pass goes through the vocabulary instead: a part of it at
a time, for all tokens. Each row of the output layer's gradient is one product, rounded once, and takes the row's place.
The output layer is a constant of the first loop and the start of the second: ZeRO stage 3 gathers it once per pass and
scatters its gradient once.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jzero.flax.mean import Mean
from jzero.jaxpr.devices import COUNTING, target
from jzero.ops.loss_checks import HeadLayout, check_arrays, check_optional_arrays, check_options

CHUNK_BYTES = 256 * 2**20
"""How large the float32 logits that exist at a time may be, by default."""

MIN_CHUNK = 128
"""Tokens in a chunk, or entries of the vocabulary in a part, at least, by default: smaller products are slow."""

TILE = 8
"""Parts have a multiple of this many rows, which tensor cores like."""


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
    It is differentiated in reverse mode. Tokens are those of one device, as in every step of jzero; where `jit` alone
    divides a batch, chunks would cut across devices.

    Args:
        hidden: `[..., T, d]`, floating: what enters the output layer.
        head: the output layer, of the dtype of `hidden` or a wider one, in which the logits are then computed.
        targets: integers `[..., T]`. One that is outside of `0 ... vocab - 1`, and not ignored, is not noticed: its
            token's loss is that of a label whose logit is 0.
        head_layout: `"vd"` for a head `[vocab, d]`, such as an embedding's table; `"dv"` for one `[d, vocab]`.
        bias: floating `[vocab]`, added to the logits.
        mask: `[..., T]`, bool or numbers: the weight of each token's loss.
        ignore_index: targets of this value have no weight; with a `mask`, both count.
        z_loss: adds this times the square of the log of the sum of exponentials, which keeps logits from drifting.
        softcap: logits `x` become `softcap * tanh(x / softcap)`.
        chunk_tokens: how many tokens' logits exist at a time; backward half as many logits, those of all tokens at a
            part of the vocabulary. By default as many as take 256 MiB, and at least 128.

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
    n_tokens, layer = targets.size, _OutputLayer(head, bias)
    hidden, targets = hidden.astype(head.dtype), targets.astype(jnp.int32)
    least = MIN_CHUNK if chunk_tokens is None else 1
    chunk = chunk_tokens or max(least, CHUNK_BYTES // (4 * vocab))
    width = max(least, math.ceil(vocab * chunk / (2 * n_tokens)))  # logits and their gradients exist at once
    form = _Form(head_layout, z_loss, softcap, _size(n_tokens, chunk), _size(vocab, width))
    if chunk >= n_tokens or target() is COUNTING:
        losses = _plain_losses(form, layer, hidden, targets)
    else:
        flat = hidden.reshape(n_tokens, hidden.shape[-1]), targets.reshape(n_tokens)
        losses = _in_parts(form, layer, *flat).reshape(targets.shape)
    weights = _weights(targets, mask, ignore_index)
    if weights is None:
        return Mean(losses.sum(), jnp.asarray(n_tokens, jnp.float32))
    return Mean((losses * weights).sum(), weights.sum())


class _Form(NamedTuple):
    """What is no array.

    Attributes:
        head_layout, z_loss, softcap: see `cross_entropy`.
        chunk: tokens at a time in the forward pass.
        width: entries of the vocabulary at a time in the backward pass.
    """

    head_layout: HeadLayout
    z_loss: float
    softcap: float | None
    chunk: int
    width: int

    @property
    def vocab_dim(self) -> int:
        return self.head_layout.index("v")


class _OutputLayer(NamedTuple):
    """What turns hidden states into logits; also the gradient of that."""

    head: jax.Array
    bias: jax.Array | None


class _Tokens(NamedTuple):
    """Some tokens: hidden states `[T, d]` and targets `[T]`."""

    hidden: jax.Array
    targets: jax.Array


class _Found(NamedTuple):
    """Of each token its loss, its largest logit, and the sum of the exponentials of what its logits are below that."""

    loss: jax.Array
    top: jax.Array
    total: jax.Array


class _Kept(NamedTuple):
    """What the backward pass reads. At stage 3 the layer is not kept, but gathered again."""

    layer: _OutputLayer
    tokens: _Tokens
    top: jax.Array
    total: jax.Array


def _weights(targets: jax.Array, mask: jax.Array | None, ignore_index: int | None) -> jax.Array | None:
    """The weight of each token, float32; None if all count alike."""
    weights = None if mask is None else mask.astype(jnp.float32)
    if ignore_index is None:
        return weights
    counted = targets != ignore_index
    return counted.astype(jnp.float32) if weights is None else jnp.where(counted, weights, 0)


def _size(n: int, most: int) -> int:
    """How large each of the fewest parts of `n` is, if none is larger than `most`, and all are about equal."""
    if n <= most:
        return n
    even = math.ceil(n / math.ceil(n / most))
    return min(n, TILE * math.ceil(even / TILE))


def _plain_losses(form: _Form, layer: _OutputLayer, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """The losses of tokens, from all logits, as JAX differentiates them."""
    logits = _capped(form, _logits(form, layer, hidden))
    return _losses(form, logits, jax.nn.logsumexp(logits, axis=-1), targets)


def _losses(form: _Form, logits: jax.Array, log_sum: jax.Array, targets: jax.Array) -> jax.Array:
    """The losses of tokens, from their logits `[..., vocab]` and the log of the sum of the exponentials of those."""
    losses = log_sum - jnp.sum(logits, axis=-1, where=_is_target(targets, logits.shape[-1]))
    return losses + form.z_loss * log_sum**2 if form.z_loss else losses


def _capped(form: _Form, logits: jax.Array) -> jax.Array:
    return logits if form.softcap is None else form.softcap * jnp.tanh(logits / form.softcap)


def _logits(form: _Form, layer: _OutputLayer, hidden: jax.Array) -> jax.Array:
    """`[..., d]` -> float32 `[..., vocab]`, before the soft cap."""
    logits = jnp.einsum(f"...d,{form.head_layout}->...v", hidden, layer.head, preferred_element_type=jnp.float32)
    return logits if layer.bias is None else logits + layer.bias.astype(jnp.float32)


def _is_target(targets: jax.Array, vocab: int) -> jax.Array:
    """`[...]` -> bool `[..., vocab]`. By comparison, not by indexing: it fuses, and its gradient is no scatter."""
    return jax.lax.broadcasted_iota(targets.dtype, (*targets.shape, vocab), targets.ndim) == targets[..., None]


def _chunked_losses(form: _Form, layer: _OutputLayer, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """The losses of `[T, d]` tokens, from the logits of a chunk at a time."""
    return _forward(form, layer, hidden, targets)[0]


def _forward(form: _Form, layer: _OutputLayer, hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    tokens, n_tokens = _Tokens(hidden, targets), len(targets)

    def step(found: _Found, i: jax.Array) -> tuple[_Found, None]:
        # The last chunk begins early enough to be as long as the others. What it computes twice stays the same.
        begin = jnp.minimum(i * form.chunk, n_tokens - form.chunk)
        chunk = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, form.chunk), tokens)
        logits = _capped(form, _logits(form, layer, chunk.hidden))
        top = logits.max(axis=-1)
        total = jnp.exp(logits - top[:, None]).sum(axis=-1)
        new = _Found(_losses(form, logits, jnp.log(total) + top, chunk.targets), top, total)
        return jax.tree.map(lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, begin, 0), found, new), None

    nothing = _Found(*(jnp.zeros(n_tokens, jnp.float32) for _ in _Found._fields))
    found, _ = jax.lax.scan(step, nothing, jnp.arange(-(-n_tokens // form.chunk)))
    return found.loss, _Kept(layer, tokens, found.top, found.total)


def _backward(form: _Form, kept: _Kept, grad: jax.Array) -> tuple[_OutputLayer, jax.Array, None]:
    vocab, hidden = kept.layer.head.shape[form.vocab_dim], kept.tokens.hidden

    def step(carry: tuple[_OutputLayer, jax.Array], i: jax.Array) -> tuple[tuple[_OutputLayer, jax.Array], None]:
        layer, grad_hidden = carry
        # The last part begins early enough to be as wide as the others, where gradients have taken the layer's place.
        begin = jnp.minimum(i * form.width, vocab - form.width)
        is_new = begin + jnp.arange(form.width) >= i * form.width
        found = _part(form, layer, begin)
        part = _where(form, is_new, found, jax.tree.map(jnp.zeros_like, found))
        grad_logits = jnp.where(is_new, _grad_logits(form, part, kept, begin, grad), 0)
        grad_part, more = _grads(form, part, hidden, grad_logits)
        layer = _replaced(form, layer, _where(form, is_new, grad_part, found), begin)
        return (layer, grad_hidden + more), None

    # Zeros depend on nothing: the compiler could make them at the start of the step.
    zero, grad = jax.lax.optimization_barrier((jnp.zeros((), jnp.float32), grad))
    start = kept.layer, jnp.broadcast_to(zero, hidden.shape)
    (grad_layer, grad_hidden), _ = jax.lax.scan(step, start, jnp.arange(-(-vocab // form.width)))
    return grad_layer, grad_hidden.astype(hidden.dtype), None


_in_parts = jax.custom_vjp(_chunked_losses, nondiff_argnums=(0,))
_in_parts.defvjp(_forward, _backward)


def _vocab_dim(form: _Form, x: jax.Array) -> int:
    """Which dimension of an array of the layer goes over the vocabulary."""
    return form.vocab_dim if x.ndim == 2 else 0


def _part(form: _Form, layer: _OutputLayer, begin: jax.Array) -> _OutputLayer:
    """What of a layer is for `form.width` entries of the vocabulary."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, form.width, _vocab_dim(form, x)), layer)


def _replaced(form: _Form, layer: _OutputLayer, part: _OutputLayer, begin: jax.Array) -> _OutputLayer:
    """A layer with another part in it."""
    put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, begin, _vocab_dim(form, x))
    return jax.tree.map(put, layer, part)


def _where(form: _Form, is_first: jax.Array, first: _OutputLayer, second: _OutputLayer) -> _OutputLayer:
    """Of two parts of a layer the first where `is_first`, by entries of the vocabulary."""

    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(jnp.expand_dims(is_first, [i for i in range(x.ndim) if i != _vocab_dim(form, x)]), x, y)

    return jax.tree.map(choose, first, second)


def _grad_logits(form: _Form, part: _OutputLayer, kept: _Kept, begin: jax.Array, grad: jax.Array) -> jax.Array:
    """Gradients of the losses of all tokens by some logits, before the soft cap: float32 `[T, width]`.

    Args:
        form: see `_Form`.
        part: the part of the layer that makes the logits.
        kept: what the forward pass kept.
        begin: the first entry of the vocabulary that is in the part.
        grad: float32 `[T]`, by the losses.
    """
    logits, slope = _logits(form, part, kept.tokens.hidden), None
    if form.softcap is not None:
        capped = jnp.tanh(logits / form.softcap)
        logits, slope = form.softcap * capped, 1 - capped**2
    of_log_sum = grad * (1 + 2 * form.z_loss * (jnp.log(kept.total) + kept.top))
    of_logits = jnp.exp(logits - kept.top[:, None]) * (of_log_sum / kept.total)[:, None]
    of_logits -= jnp.where(_is_target(kept.tokens.targets - begin, form.width), grad[:, None], 0)
    return of_logits if slope is None else of_logits * slope


def _grads(
    form: _Form, part: _OutputLayer, hidden: jax.Array, grad_logits: jax.Array
) -> tuple[_OutputLayer, jax.Array]:
    """Gradients of a part of the layer, and what it adds to those of hidden states, in float32.

    JAX multiplies float32 gradients of logits by operands of 16 bits, for which GPUs widen the operands. In bf16 the
    gradients are split instead, into two numbers that sum to them to 16 bits, and are multiplied side by side.
    """
    sides, n_sides = grad_logits, 1
    if part.head.dtype == jnp.bfloat16:
        # Rounded by no cast: XLA leaves out casts there and back.
        high = jax.lax.reduce_precision(grad_logits, exponent_bits=8, mantissa_bits=7)
        sides, n_sides = jnp.concatenate([high, grad_logits - high], axis=1).astype(jnp.bfloat16), 2
    product = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    head = jnp.concatenate([part.head] * n_sides, axis=form.vocab_dim)
    grad_hidden = product(sides, head, (((1,), (form.vocab_dim,)), ((), ())))
    left, right = (sides, hidden) if form.vocab_dim == 0 else (hidden, sides)
    grad_head = product(left, right, (((0,), (0,)), ((), ())))
    grad_head = functools.reduce(jnp.add, jnp.split(grad_head, n_sides, axis=form.vocab_dim))
    grad_bias = None if part.bias is None else grad_logits.sum(axis=0).astype(part.bias.dtype)
    return _OutputLayer(grad_head.astype(part.head.dtype), grad_bias), grad_hidden
