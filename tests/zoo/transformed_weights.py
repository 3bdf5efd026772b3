"""Weights that are not used as they are: adapters, normalised weights, ensembles, weights that another network made."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case, Pure, floats

D, OUT = 129, 131  # 16899 elements that 8 does not divide


class Adapted(nnx.Module):
    """A frozen layer with an adapter around it, and one with an adapter inside."""

    def __init__(self, rngs):
        self.around = nnx.LoRA(D, 8, OUT, base_module=nnx.Linear(D, OUT, rngs=rngs), rngs=rngs)
        self.inside = nnx.LoRALinear(OUT, 16, lora_rank=8, rngs=rngs)

    def __call__(self, x):
        return self.inside(jnp.tanh(self.around(x)))


class LinenAdapted(nn.Module):
    @nn.compact
    def __call__(self, x):
        adapter = nn.Dense(OUT, use_bias=False, name="lora_b")(nn.Dense(8, use_bias=False, name="lora_a")(x))
        return nn.Dense(OUT, name="base")(x) + adapter


class Normalised(nnx.Module):
    def __init__(self, rngs, wrap):
        self.first = wrap(nnx.Linear(D, OUT, rngs=rngs), rngs=rngs)
        self.second = nnx.Linear(OUT, 16, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


class LinenWeightNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(16)(jnp.tanh(nn.WeightNorm(nn.Dense(OUT))(x)))


class LinenSpectralNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(16)(jnp.tanh(nn.SpectralNorm(nn.Dense(OUT))(x, update_stats=True)))


class Ensemble(nnx.Module):
    """Five models side by side: one call over stacked weights."""

    def __init__(self, rngs):
        self.members = nnx.split_rngs(splits=5)(nnx.vmap(lambda rngs: nnx.Linear(D, 40, rngs=rngs)))(rngs)

    def __call__(self, x):
        return nnx.vmap(lambda member, x: jnp.tanh(member(x)), in_axes=(0, None))(self.members, x)


class LinenEnsemble(nn.Module):
    @nn.compact
    def __call__(self, x):
        members = nn.vmap(nn.Dense, in_axes=None, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=5)
        return jnp.tanh(members(40)(x))


class Hyper(nnx.Module):
    """The second layer's weights are computed from the row that they are applied to."""

    def __init__(self, rngs):
        self.weights = nnx.Linear(D, 8 * 17, rngs=rngs)
        self.first = nnx.Linear(D, 8, rngs=rngs)

    def __call__(self, x):
        w = self.weights(x).reshape(-1, 8, 17)
        return jnp.einsum("bi,bij->bj", jnp.tanh(self.first(x)), w)


class LinenHyper(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.einsum("bi,bij->bj", jnp.tanh(nn.Dense(8)(x)), nn.Dense(8 * 17)(x).reshape(-1, 8, 17))


def standardised(params, batch):
    """Weight standardisation, and a low-rank factor that is multiplied out before it meets any data."""
    w = params["w"]
    w = (w - w.mean(0)) / jnp.sqrt(w.var(0) + 1e-3) + params["u"] @ params["v"]
    return (jnp.tanh(batch["x"] @ w) ** 2).mean()


def make_standardised(key):
    shapes = {"w": (D, OUT), "u": (D, 8), "v": (8, OUT)}
    return {n: jax.random.normal(jax.random.fold_in(key, i), s) * 0.2 for i, (n, s) in enumerate(shapes.items())}


def rearranged(params, batch):
    """One leaf holds several weights: cut, turned and stacked before use."""
    q, k = jnp.split(params["qk"], 2, axis=1)
    heads = params["heads"].reshape(D, 4, 10).transpose(1, 0, 2)
    y = jnp.einsum("bd,hdf->bhf", batch["x"], heads)
    return (jnp.tanh(batch["x"] @ q * (batch["x"] @ k)) ** 2).mean() + (y**2).mean()


def make_rearranged(key):
    a, b = jax.random.split(key)
    return {"qk": jax.random.normal(a, (D, 2 * OUT)) / 12, "heads": jax.random.normal(b, (D, 40)) / 12}


def lengthened(params, batch):
    """Weights that grow by constants before their use: padded, transformed at another length, with a row replaced."""
    wide = jnp.pad(params["w"], ((0, 0), (0, 5)))
    long = lambda x: jnp.fft.rfft(x, n=2 * D)
    convolved = jnp.fft.irfft(long(batch["x"]) * long(params["kernel"]), n=2 * D)[:, :D]
    smoothed = jax.vmap(lambda x: jax.scipy.signal.fftconvolve(x, params["kernel"][:9], mode="same"))(batch["x"])
    first_off = params["v"].at[0].set(0.0) + jax.lax.pad(params["v"][1:], 1.0, [(1, 0, 0), (0, 0, 0)])
    return ((jnp.tanh(convolved + smoothed) @ wide)[:, :OUT] @ first_off).var(-1).mean()


def make_lengthened(key):
    shapes = {"w": (D, OUT), "v": (OUT, 16), "kernel": (D,)}
    return {n: jax.random.normal(jax.random.fold_in(key, i), s) * 0.2 for i, (n, s) in enumerate(shapes.items())}


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(D)}
# A norm of the weight, and the weight divided by it; the power iteration takes it twice more, without a gradient.
NORM, LINEN_NORM = {"first.layer_instance.kernel": 2}, {"Dense_1.kernel": 2}
only_adapters = lambda name: "lora" in name
CASES = {
    "nnx lora": Case(lambda rngs: Adapted(rngs), squares, BATCH, trainable=nnx.LoRAParam),
    "linen lora": Case(LinenAdapted(), squares, BATCH, trainable=only_adapters),
    "nnx weight norm": Case(lambda rngs: Normalised(rngs, nnx.WeightNorm), squares, BATCH, uses=NORM),
    "linen weight norm": Case(LinenWeightNorm(), squares, BATCH, uses=LINEN_NORM),
    "nnx spectral norm": Case(
        lambda rngs: Normalised(rngs, nnx.SpectralNorm), squares, BATCH, uses=NORM, forward_uses=NORM
    ),
    "linen spectral norm": Case(LinenSpectralNorm(), squares, BATCH, uses=LINEN_NORM, forward_uses=LINEN_NORM),
    "nnx ensemble": Case(lambda rngs: Ensemble(rngs), squares, BATCH),
    "linen ensemble": Case(LinenEnsemble(), squares, BATCH),
    "nnx hypernetwork": Case(lambda rngs: Hyper(rngs), squares, BATCH),
    "linen hypernetwork": Case(LinenHyper(), squares, BATCH),
    "weight standardisation": Case(Pure(make_standardised), standardised, BATCH, uses={"w": 4}),
    "lengthened": Case(Pure(make_lengthened), lengthened, BATCH, uses={"kernel": 2, "v": 2}, rtol=1e-4),
    "rearranged": Case(Pure(make_rearranged), rearranged, BATCH),
}
