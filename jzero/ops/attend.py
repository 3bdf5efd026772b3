"""One entry to attention: what may be asked, which path runs, and why."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Unpack, get_args

import jax
import jax.numpy as jnp

from jzero.errors import ModelError
from jzero.jaxpr.devices import COUNTING, SHAPES_ALONE, target
from jzero.jaxpr.shares import marked
from jzero.ops.all_scores import plain
from jzero.ops.blocks import BLOCK, Form, Inputs, blockwise
from jzero.ops.kernels import cudnn_attention, no_cudnn, no_pallas, pallas_attention
from jzero.ops.request import Implementation, Pair, Request, Settings, request_of
from jzero.ops.visibility import Places, Rule, share_visible

_ARRAYS = frozenset({"q", "k", "v", "bias", "segments", "positions", "dropout_key"})
_log = logging.getLogger("jzero")
_said: set[str] = set()
_taken: ContextVar[set[str] | None] = ContextVar("_taken", default=None)


@contextmanager
def paths_taken() -> Iterator[set[str]]:
    """Collects which paths attention takes in what is traced inside, such as "cudnn".

    Example:
        >>> x = jnp.ones((1, 4, 2, 8))
        >>> with paths_taken() as paths:
        ...     _ = jax.eval_shape(attention, x, x, x)
        >>> paths
        {'blockwise'}
    """
    paths: set[str] = set()
    token = _taken.set(paths)
    try:
        yield paths
    finally:
        _taken.reset(token)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    segment_ids: Pair | None = None,
    positions: Pair | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: jax.Array | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Multi-head attention with the softmax in float32, in O(T) memory.

    Which path "auto" takes is said once in the log: cuDNN's flash attention on GPUs where its conditions hold, else
    blocks with an online softmax, which run everywhere. What each query sees is the same on every path, and so are the
    values up to rounding, but for dropout, whose random numbers belong to a path. Reverse-mode derivatives only.

    Args:
        q: queries `[B, T, H, h]`.
        k: keys `[B, S, K, h]`; `K` divides `H`, and each key head serves a run of `H / K` query heads.
        v: values `[B, S, K, h_v]`.
        causal: whether a query sees only keys at its own position and before. Where `S` differs from `T`, as with a
            cache of keys, `positions` must say where the tokens stand.
        segment_ids: `int[B, T]`, the documents of a packed row: a query sees keys of its own number only. A pair of
            arrays where queries and keys are different tokens.
        positions: `int[B, T]` or `int[1, T]`, likewise; by default a token's place in the row. Without it whole blocks
            that nobody sees are skipped.
        window: a query sees keys at most `window - 1` positions away, as Mistral's `sliding_window`.
        scale: of the products; `h ** -0.5` by default.
        softcap: scores become `softcap * tanh(scores / softcap)`, as in Gemma 2.
        bias: added to the capped scores, of a shape that broadcasts to `[B, H, T, S]`; it may be trained.
        dropout: the share of the weights that are dropped.
        dropout_key: a random key for it; nothing is dropped without.
        implementation: "auto", or the path that must run.

    Returns:
        `[B, T, H, h_v]` in the dtype of `v`, zeros for a query that sees nothing.

    Raises:
        ModelError: shapes or dtypes that do not fit, or a path that cannot do what is asked, with the reason.

    Example:
        >>> q = k = v = jnp.ones((1, 4, 2, 8))
        >>> attention(q, k, v, causal=True).shape
        (1, 4, 2, 8)
    """
    settings = Settings(
        causal=causal,
        segment_ids=segment_ids,
        positions=positions,
        window=window,
        scale=scale,
        softcap=softcap,
        bias=bias,
        dropout=dropout,
        dropout_key=dropout_key,
        implementation=implementation,
    )
    return _attend(q, k, v, settings, with_lse=False)[0]


def attention_with_lse(
    q: jax.Array, k: jax.Array, v: jax.Array, **settings: Unpack[Settings]
) -> tuple[jax.Array, jax.Array]:
    """`attention`, and the log of the sum of the exponentials of each query's scores.

    Two results over different keys can be merged with it, as ring attention does.

    Args:
        q: see `attention`.
        k: see `attention`.
        v: see `attention`.
        **settings: the keyword arguments of `attention`.

    Returns:
        What `attention` returns, and `float32[B, T, H]`, minus infinity for a query that sees nothing.

    Raises:
        ModelError: as `attention`.

    Example:
        >>> q = k = v = jnp.zeros((1, 4, 1, 8))
        >>> jnp.exp(attention_with_lse(q, k, v, causal=True)[1][0, :, 0]).round().tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    out, lse = _attend(q, k, v, settings, with_lse=True)
    assert lse is not None, "a path without it is not chosen"
    return out, lse


def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings, *, with_lse: bool
) -> tuple[jax.Array, jax.Array | None]:
    asked, known = settings.get("implementation", "auto"), get_args(Implementation)
    if asked not in known:
        raise ModelError(f"attention has no implementation {asked!r}; known: {', '.join(known)}.")
    request = request_of(q, k, v, settings, with_lse=with_lse)
    if target() is COUNTING:
        return _counted(request)
    path = _choose(request, asked)
    if (paths := _taken.get()) is not None and target() is not SHAPES_ALONE:
        paths.add(path)
    return _run(request, path)


def _counted(request: Request) -> tuple[jax.Array, jax.Array | None]:
    """All scores at once, as none of the paths that run computes them, with how many of them are needed."""
    rule = Rule(request.causal, request.window, request.k.shape[1])
    arrays = {name: x for name, x in request._asdict().items() if name in _ARRAYS and x is not None}
    run = marked(lambda arrays: _run(request._replace(**arrays), "plain"), share_visible(rule, request.q.shape[1]))
    return run(arrays)


def _choose(request: Request, asked: Implementation) -> Implementation:
    """The path that runs; says once which, and why it is not cuDNN."""
    if asked in ("cudnn", "pallas"):
        if reason := (no_cudnn if asked == "cudnn" else no_pallas)(request):
            raise ModelError(f"attention(implementation={asked!r}): {reason}; use 'auto' or 'blockwise'.")
        return asked
    if asked != "auto":
        return asked
    reason = no_cudnn(request)
    _say_once("attention runs in cuDNN." if not reason else f"attention runs in blocks, without cuDNN: {reason}.")
    return "blockwise" if reason else "cudnn"


def _say_once(text: str) -> None:
    if text not in _said and target() is not SHAPES_ALONE:
        _said.add(text)
        _log.info(text)


def _run(request: Request, path: Implementation) -> tuple[jax.Array, jax.Array | None]:
    """The output, and the log-sum-exp from the paths that have one."""
    if path == "cudnn":
        return cudnn_attention(request), None
    if path == "pallas":
        return pallas_attention(request), None
    q, k, v = request.q, request.k, request.v
    n_queries, n_keys, n_groups = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    blocks = path == "blockwise"
    form = Form(
        Rule(request.causal, request.window, n_keys),
        request.positions is None,
        request.scale,
        request.softcap,
        request.dropout,
        min(BLOCK, n_queries),
        min(BLOCK, n_keys),
    )
    grouped = q.reshape(*q.shape[:2], k.shape[2], n_groups, q.shape[3]).transpose(0, 2, 3, 1, 4)
    bias = request.bias
    if bias is not None:
        bias = bias.reshape(bias.shape[0], *((1, 1) if bias.shape[1] == 1 else (k.shape[2], n_groups)), *bias.shape[2:])
    inputs = Inputs(
        grouped, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3), bias, _places(request, 0), _places(request, 1),
        None if request.dropout_key is None else jax.random.key_data(request.dropout_key),
    )  # fmt: skip
    if blocks:
        inputs = _padded(inputs, -n_queries % form.q_size, -n_keys % form.k_size)
    out, lse = blockwise(form, inputs) if blocks else plain(form, inputs)
    out = out[:, :, :, :n_queries].transpose(0, 3, 1, 2, 4).reshape(*q.shape[:3], v.shape[3])
    return out, lse[:, :, :, :n_queries].transpose(0, 3, 1, 2).reshape(q.shape[:3])


def _places(request: Request, which: int) -> Places:
    n_tokens = (request.q, request.k)[which].shape[1]
    indices = jnp.arange(n_tokens, dtype=jnp.int32)
    positions = indices[None] if request.positions is None else request.positions[which].astype(jnp.int32)
    return Places(positions, None if request.segments is None else request.segments[which], indices)


def _padded(inputs: Inputs, n_queries: int, n_keys: int) -> Inputs:
    """With rows that are multiples of a block; the rule hides the new keys, and the new queries are cut off."""
    if not n_queries and not n_keys:
        return inputs
    pad = lambda x, *last: jnp.pad(x, [(0, 0)] * (x.ndim - len(last)) + [(0, n) for n in last])
    bias = inputs.bias
    if bias is not None:
        bias = pad(bias, 0 if bias.shape[3] == 1 else n_queries, n_keys)
    return Inputs(
        pad(inputs.q, n_queries, 0), pad(inputs.k, n_keys, 0), pad(inputs.v, n_keys, 0), bias,
        inputs.queries.padded(n_queries), inputs.keys.padded(n_keys), inputs.key,
    )  # fmt: skip
