"""Attention in kernels of others: cuDNN's and the one of Pallas, and what keeps each of them from running."""

import warnings

import jax
import jax.numpy as jnp

from jzero.jaxpr.devices import cudnn_is_there, target
from jzero.ops.request import Request

PALLAS_BLOCK = 64
"""Rows of queries and keys that a program of the Pallas kernel takes."""


def no_cudnn(request: Request) -> str:
    """Why cuDNN's flash attention cannot run; empty if it can.

    Its conditions are those of NVIDIA's cuDNN frontend and of `jax.nn.dot_product_attention`. Packed rows are left
    out: until jax 0.11 their offsets are wrong for grouped queries, so that a query sees other keys.
    """
    devices, width = target(), request.q.shape[3]
    if devices.platform != "gpu":
        return f"it runs on GPUs, and this program is for {devices.platform}"
    if not cudnn_is_there():
        return "it is not installed (pip install nvidia-cudnn-cu12, 1.1 GB on disk)"
    if devices.capability is None:
        return "nothing is compiled for this GPU"
    capability = devices.capability
    widest = 256 if capability >= (9, 0) else 128
    reasons = {
        f"it needs compute capability 8.0, and the GPU has {'.'.join(map(str, capability))}": capability < (8, 0),
        f"it takes float16 and bfloat16, not {request.q.dtype}": request.q.dtype not in (jnp.float16, jnp.bfloat16),
        f"it takes heads of up to {widest} in multiples of 8, not of {width}": width % 8 or width > widest,
        "values are of another width than keys": request.v.shape[3] != width,
        "it has no soft cap": request.softcap is not None,
        "it keeps no packed rows apart": request.segments is not None,
        "it takes no positions": request.positions is not None,
        "it rounds the log-sum-exp, without a gradient": request.with_lse,
        "its dropout has one seed for all steps": request.dropout_key is not None,
        "its window is for causal attention": request.window is not None and not request.causal,
        "it takes rows of even length": request.q.shape[1] % 2 or request.k.shape[1] % 2,
        "its bias must have a row for every query": request.bias is not None and request.bias.shape[2] == 1,
        "an axis of the mesh is left to the compiler": _left_to_the_compiler(),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def cudnn_attention(request: Request) -> jax.Array:
    """Runs it."""
    window = None if request.window is None else (request.window - 1, 0)
    return jax.nn.dot_product_attention(
        request.q,
        request.k,
        request.v,
        request.bias,
        scale=request.scale,
        is_causal=request.causal,
        local_window_size=window,
        implementation="cudnn",
    )


def no_pallas(request: Request) -> str:
    """Why the Pallas kernel that comes with JAX cannot run; empty if it can. On CPUs it is interpreted, for tests."""
    n_queries, n_keys, width = request.q.shape[1], request.k.shape[1], request.q.shape[3]
    reasons = {
        "it runs on GPUs, and is interpreted on CPUs": target().platform not in ("gpu", "cpu"),
        "values are of another width than keys": request.v.shape[3] != width,
        f"it takes heads of a power of two from 16 on, not of {width}": width < 16 or width & (width - 1) != 0,
        f"it takes rows in multiples of {PALLAS_BLOCK} tokens": n_queries % PALLAS_BLOCK or n_keys % PALLAS_BLOCK,
        "it takes as many queries as keys": n_queries != n_keys,
        "it has no soft cap": request.softcap is not None,
        "it has no window": request.window is not None,
        "it has no bias": request.bias is not None,
        "it has no dropout": request.dropout_key is not None,
        "it takes no positions": request.positions is not None,
        "it takes the same segment_ids for queries and keys": bool(request.segments)
        and request.segments[0] is not request.segments[1],
        "it gives no log-sum-exp": request.with_lse,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def pallas_attention(request: Request) -> jax.Array:
    """Runs it; each key head is repeated for the query heads that share it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its successor needs Python 3.12
        from jax.experimental.pallas.ops.gpu import attention as pallas

    k, v = (jnp.repeat(x, request.q.shape[2] // x.shape[2], axis=2) for x in (request.k, request.v))
    segments = None if request.segments is None else request.segments[0]
    if segments is not None:
        segments = jnp.broadcast_to(segments, request.q.shape[:2])
    sizes = pallas.BlockSizes(*[PALLAS_BLOCK] * len(pallas.BlockSizes.__dataclass_fields__))
    interpreted = target().platform == "cpu"
    return pallas.mha(request.q, k, v, segments, request.scale, request.causal, sizes, interpret=interpreted)


def _left_to_the_compiler() -> bool:
    """Whether the mesh has an axis, inside `shard_map`, that cuDNN's kernel cannot be partitioned over."""
    mesh = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes) and any(mesh.shape[axis] > 1 for axis in mesh.auto_axes)
