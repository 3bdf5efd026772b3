"""What is asked of attention, checked: the arguments in one form that every path takes."""

from typing import Literal, NamedTuple, TypeAlias, TypedDict

import jax
import jax.numpy as jnp

from jzero.errors import ModelError

Implementation: TypeAlias = Literal["auto", "cudnn", "pallas", "blockwise", "plain"]
"""The paths of attention, and "auto" for the best that the arguments and the devices allow."""

Pair: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]
"""Something of every token: one array where queries and keys are the same tokens, else that of each."""


class Request(NamedTuple):
    """The arguments of `attention`, checked.

    Attributes:
        q: `[B, T, H, h]`.
        k: `[B, S, K, h]`.
        v: `[B, S, K, h_v]`.
        causal: see `attention`.
        window: see `attention`.
        scale: a number.
        softcap: see `attention`.
        dropout: see `attention`.
        bias: four dimensions, or None.
        segments: of queries and keys, or None.
        positions: of queries and keys, or None for places in the row.
        dropout_key: a random key, or None where nothing is dropped.
        with_lse: whether the log-sum-exp is wanted.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    causal: bool
    window: int | None
    scale: float
    softcap: float | None
    dropout: float
    bias: jax.Array | None
    segments: tuple[jax.Array, jax.Array] | None
    positions: tuple[jax.Array, jax.Array] | None
    dropout_key: jax.Array | None
    with_lse: bool


class Settings(TypedDict, total=False):
    """The keyword arguments of `jzero.attention`."""

    causal: bool
    segment_ids: Pair | None
    positions: Pair | None
    window: int | None
    scale: float | None
    softcap: float | None
    bias: jax.Array | None
    dropout: float
    dropout_key: jax.Array | None
    implementation: Implementation


def request_of(q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings, *, with_lse: bool) -> Request:
    """Checks the arguments of `jzero.attention`; see there for what is raised."""
    _check_shapes(q, k, v)
    scale, dropout, dropout_key = settings.get("scale"), settings.get("dropout", 0.0), settings.get("dropout_key")
    request = Request(
        q=q,
        k=k,
        v=v,
        causal=settings.get("causal", False),
        window=settings.get("window"),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=settings.get("softcap"),
        dropout=dropout,
        bias=_bias(q, k, settings.get("bias")),
        segments=_pair("segment_ids", settings.get("segment_ids"), q, k),
        positions=_pair("positions", settings.get("positions"), q, k),
        dropout_key=None if dropout == 0 else dropout_key,
        with_lse=with_lse,
    )
    _check_settings(request)
    return request


def _check_shapes(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ModelError(f"attention takes [batch, tokens, heads, width] each, not {shapes}.")
    if q.dtype != k.dtype or q.dtype != v.dtype or not jnp.issubdtype(q.dtype, jnp.floating):
        raise ModelError(f"attention takes q, k and v of one floating dtype, not {q.dtype}, {k.dtype} and {v.dtype}.")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ModelError(
            f"attention: {shapes} do not belong together: the batch must be the same, keys as many and as wide as "
            "values and queries need them."
        )
    if not all(q.shape) or not all(k.shape) or q.shape[2] % k.shape[2]:
        raise ModelError(
            f"attention: the heads of q must be a multiple of those of k, and nothing empty, not {shapes}."
        )


def _check_settings(request: Request) -> None:
    window, n_queries, n_keys = request.window, request.q.shape[1], request.k.shape[1]
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ModelError(f"attention's window must be a positive whole number of tokens or None, not {window!r}.")
    if not 0 <= request.dropout < 1:
        raise ModelError(f"attention's dropout must be a rate from 0 up to, not including, 1, not {request.dropout!r}.")
    if request.softcap is not None and not request.softcap > 0:
        raise ModelError(f"attention's softcap must be a positive number or None, not {request.softcap!r}.")
    if (request.causal or window) and n_queries != n_keys and request.positions is None:
        raise ModelError(
            f"attention of {n_queries} queries to {n_keys} keys needs positions=(those of queries, those of keys) to "
            "know which come before which."
        )


def _bias(q: jax.Array, k: jax.Array, bias: jax.Array | None) -> jax.Array | None:
    """The bias with four dimensions, the last one whole."""
    if bias is None:
        return None
    shape, scores = (1,) * (4 - bias.ndim) + bias.shape, (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if len(shape) != 4 or any(n not in (1, whole) for n, whole in zip(shape, scores, strict=True)):
        raise ModelError(f"attention's bias has shape {bias.shape}, which does not broadcast to the scores {scores}.")
    return jnp.broadcast_to(bias.reshape(shape), (*shape[:3], scores[3]))


def _pair(name: str, given: Pair | None, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array] | None:
    """An array of each token for queries and for keys."""
    if given is None:
        return None
    pair = given if isinstance(given, tuple) else (given, given)
    for of, x, tokens in zip(("queries", "keys"), pair, (q, k), strict=True):
        if not jnp.issubdtype(x.dtype, jnp.integer) or x.shape not in (tokens.shape[:2], (1, tokens.shape[1])):
            raise ModelError(
                f"attention's {name} of the {of} must be integers of shape {tokens.shape[:2]}, not {x.dtype}{x.shape}"
                f"{'' if isinstance(given, tuple) else '; give a pair where queries and keys are different tokens'}."
            )
    return pair[0], pair[1]
