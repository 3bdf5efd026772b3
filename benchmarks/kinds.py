"""Small models of the kinds that a GPU compiles in ways of its own, for `gpu_kinds.py`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

import jzero
from jzero import models

HEADS, WIDTH, TOKENS, D, LAYERS, VOCAB = 8, 64, 512, 256, 2, 1024


class Kind(NamedTuple):
    """One model: what `jzero.initialize` takes, and the shapes of a batch by its number of rows."""

    model: Any
    loss_fn: Callable
    batch: Callable[[int], Mapping[str, jax.ShapeDtypeStruct]]


def squares(model, batch):
    """A loss that needs no labels."""
    return jnp.square(model(batch["x"]).astype(jnp.float32)).mean()


def squares_in_training(model, batch, train: bool):
    """The same for a Linen model with dropout or batch statistics."""
    return jnp.square(model(batch["x"], train).astype(jnp.float32)).mean()


def rows_of(*shape: int) -> Callable[[int], Mapping[str, jax.ShapeDtypeStruct]]:
    """A batch of floats of this shape each."""
    return lambda n: {"x": jax.ShapeDtypeStruct((n, *shape), jnp.float32)}


SEQUENCE = rows_of(TOKENS, D)


class Block(nn.Module):
    """Self-attention with a residual connection."""

    attend: Callable
    n_kv: int = HEADS

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        n_heads = HEADS + 2 * self.n_kv
        heads = nn.Dense(n_heads * WIDTH, dtype=x.dtype)(x).reshape(*x.shape[:2], n_heads, WIDTH)
        q, k, v = jnp.split(heads, [HEADS, HEADS + self.n_kv], axis=2)
        return x + nn.Dense(D, dtype=x.dtype)(self.attend(q, k, v).reshape(*x.shape[:2], -1))


class Attention(nn.Module):
    """Blocks, scanned or one after the other, rematerialised or not."""

    attend: Callable
    n_kv: int = HEADS
    scanned: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        x = nn.Dense(D)(x).astype(jnp.bfloat16)
        block = nn.remat(Block, prevent_cse=not self.scanned) if self.remat else Block
        if not self.scanned:
            for _ in range(LAYERS):
                x = block(self.attend, self.n_kv)(x)
            return x
        run = lambda block, x, _: (block(x), None)
        scan = nn.scan(run, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return scan(block(self.attend, self.n_kv), x, None)[0]


def cudnn(q, k, v, **settings):
    """JAX's own call of cuDNN, as models have it that know nothing of jzero."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn", **settings)


def cudnn_bias(q, k, v):
    """The same with a bias, as ALiBi's."""
    return cudnn(q, k, v, bias=jnp.zeros((1, HEADS, TOKENS, TOKENS), q.dtype))


def packed(q, k, v):
    """Rows of four documents."""
    segments = jnp.broadcast_to(jnp.arange(TOKENS) // (TOKENS // 4), q.shape[:2])
    return jzero.attention(q, k, v, causal=True, segment_ids=segments)


def pallas(q, k, v):
    """The Triton kernel that comes with JAX."""
    return jzero.attention(q, k, v, causal=True, implementation="pallas")


class Convolutions(nn.Module):
    """Convolutions with batch normalisation."""

    @nn.compact
    def __call__(self, x, train: bool):
        """Maps `[B, H, W, C]` to `[B, 128]`."""
        for features in (64, 128):
            x = nn.Conv(features, (3, 3), strides=2)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, dtype=jnp.float32)(x)).astype(x.dtype)
        return x.mean(axis=(1, 2))


class Experts(nn.Module):
    """Eight experts, each for an eighth of the tokens, by `jax.lax.ragged_dot`."""

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        w = self.param("experts", nn.initializers.lecun_normal(), (8, D, D), jnp.float32)
        flat = x.reshape(-1, D).astype(w.dtype)
        sizes = jnp.full(8, flat.shape[0] // 8, jnp.int32)
        return jax.lax.ragged_dot(flat, w, sizes).reshape(x.shape)


class Fp8(nn.Module):
    """Dense layers whose products are in 8 bits, by Flax's own operation."""

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        for _ in range(LAYERS):
            x = nn.Dense(D, dot_general_cls=nn.Fp8DotGeneralOp, dtype=jnp.bfloat16)(x.astype(jnp.bfloat16))
        return x


class Spectral(nn.Module):
    """A Fourier transform between dense layers, in float32, as JAX has none in 16 bits."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        x = nn.Dense(D)(x)
        mixed = jnp.fft.rfft(x.astype(self.dtype or x.dtype), axis=1)
        return nn.Dense(D)(jnp.fft.irfft(mixed, TOKENS, axis=1).astype(x.dtype))


class Dropped(nn.Module):
    """Dropout, whose numbers come from the PRNG implementation that is set."""

    implementation: str

    @nn.compact
    def __call__(self, x, train: bool):
        """Maps `[B, T, d]` to the same."""
        x = nn.Dense(D)(x)
        bits = jax.random.key_data(self.make_rng("dropout")) if train else None
        if bits is None:
            return x
        key = jax.random.key(
            jax.random.bits(jax.random.wrap_key_data(bits), dtype=jnp.uint32), impl=self.implementation
        )
        return nn.Dense(D)(jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0))


class Mapped:
    """A `shard_map` over the mesh's last axis inside the model; without Flax, whose `init` knows no mesh."""

    def init(self, key, batch):
        """Makes the parameters."""
        return {"up": jax.random.normal(key, (D, D)), "down": jax.random.normal(key, (D, D))}


def mapped_squares(params, batch):
    """Its loss."""
    inner = jax.shard_map(jnp.tanh, in_specs=jax.P(), out_specs=jax.P(), axis_names={"tensor"}, check_vma=False)
    return jnp.square((inner(batch["x"] @ params["up"]) @ params["down"]).astype(jnp.float32)).mean()


class CalledBack(nn.Module):
    """A function of the host in the middle of a model."""

    @nn.compact
    def __call__(self, x):
        """Maps `[B, T, d]` to the same."""
        x = nn.Dense(D)(x)
        mean = jax.lax.stop_gradient(x.mean(dtype=jnp.float32))
        seen = jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((), jnp.float32), mean)
        return nn.Dense(D)(x) * (1 + 0 * seen).astype(x.dtype)


def lstm(rngs: nnx.Rngs) -> nnx.Module:
    """The family's, small."""
    return models.build({"family": "lstm", "vocab_size": VOCAB, "d_model": D, "n_layer": 2}).factory(rngs)


def _attention(attend: Callable, **form: Any) -> Kind:
    return Kind(Attention(attend, **form), squares, SEQUENCE)


KINDS: dict[str, Kind] = {
    "cuDNN, scanned, remat": _attention(cudnn, scanned=True, remat=True),
    "cuDNN, unrolled": _attention(cudnn),
    "cuDNN, unrolled, remat": _attention(cudnn, remat=True),
    "cuDNN, grouped queries": _attention(cudnn, n_kv=2),
    "cuDNN, window": _attention(lambda q, k, v: cudnn(q, k, v, local_window_size=(127, 0))),
    "cuDNN, bias": _attention(cudnn_bias),
    "packed rows, blocks": _attention(packed, scanned=True, remat=True),
    "Pallas (Triton) attention": _attention(pallas),
    "convolutions, BatchNorm": Kind(Convolutions(), squares_in_training, rows_of(32, 32, 3)),
    "LSTM": Kind(lstm, models.next_token_loss, lambda n: {"tokens": jax.ShapeDtypeStruct((n, 65), jnp.int32)}),
    "ragged_dot experts": Kind(Experts(), squares, SEQUENCE),
    "fp8 products": Kind(Fp8(), squares, SEQUENCE),
    "FFT in float32": Kind(Spectral(), squares, SEQUENCE),
    "FFT in the compute dtype": Kind(Spectral(None), squares, SEQUENCE),
    **{
        f"dropout, {name}": Kind(Dropped(name), squares_in_training, SEQUENCE)
        for name in ("threefry2x32", "rbg", "unsafe_rbg")
    },
    "shard_map inside": Kind(Mapped(), mapped_squares, SEQUENCE),
    "pure_callback": Kind(CalledBack(), squares, SEQUENCE),
}
