"""Derivatives of the model's own, derivatives inside the loss, and leaves that are not ordinary weights."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax.experimental import pallas as pl
from jax.experimental.ode import odeint

from tests.zoo.case import Case, Pure, floats

D, OUT = 129, 131  # 16899 elements that 8 does not divide


def make(key):
    shapes = {"w": (D, OUT), "v": (OUT, 16), "bias": (OUT,)}
    return {n: jax.random.normal(jax.random.fold_in(key, i), s) / 9 for i, (n, s) in enumerate(shapes.items())}


def forward(p, x):
    return jnp.tanh(x @ p["w"] + p["bias"]) @ p["v"]


@jax.custom_vjp
def clipped_product(x, w):
    return x @ w


def _clipped_bwd(residuals, grad):
    x, w = residuals
    grad = jnp.clip(grad, -1e-3, 1e-3)
    return grad @ w.T, x.T @ grad


clipped_product.defvjp(lambda x, w: (x @ w, (x, w)), _clipped_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def scaled_product(scale, x, w):
    return scale * (x @ w)


scaled_product.defvjp(
    lambda scale, x, w: (scale * (x @ w), (x, w)), lambda scale, r, g: (scale * g @ r[1].T, scale * r[0].T @ g)
)


@jax.custom_jvp
def smooth_product(x, w):
    return jnp.log1p(jnp.exp(x @ w))


@smooth_product.defjvp
def _smooth_jvp(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    y = x @ w
    return jnp.log1p(jnp.exp(y)), jax.nn.sigmoid(y) * (dx @ w + x @ dw)


def _kernel(x_ref, w_ref, y_ref):
    y_ref[...] = jnp.dot(x_ref[...], w_ref[...])


def _pallas(x, w):
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(_kernel, out_shape=shape, interpret=True)(x, w)


pallas_product = jax.custom_vjp(_pallas)
pallas_product.defvjp(lambda x, w: (_pallas(x, w), (x, w)), lambda r, g: (_pallas(g, r[1].T), _pallas(r[0].T, g)))


def by_product(product):
    return lambda p, batch: (jnp.tanh(product(batch["x"], p["w"]) + p["bias"]) @ p["v"]).var(-1).mean()


def l2_penalty(p, batch):
    return (forward(p, batch["x"]) ** 2).mean() + 0.01 * sum((w**2).sum() for w in p.values())


def straight_out(p, batch):
    """A parameter reaches the loss without meeting any data, and so do a largest entry and a norm."""
    return (forward(p, batch["x"]) ** 2).mean() + p["w"].sum() / 9 + p["v"].max() + jnp.linalg.norm(p["w"][:, 1:])


def gradient_penalty(p, batch):
    slopes = jax.vmap(jax.grad(lambda x: forward(p, x).sum()))(batch["x"])
    return (forward(p, batch["x"]) ** 2).mean() + (slopes**2).mean()


def directional(p, batch):
    value, slope = jax.jvp(lambda x: forward(p, x), (batch["x"],), (jnp.sin(batch["x"]),))
    return (value * slope).mean()


def derivative_by_parameters(p, batch):
    """A loss that itself takes the gradient with respect to parameters: one step of learning to learn."""
    inner = lambda p: (forward(p, batch["x"][:1]) ** 2).mean()
    moved = jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(inner)(p))
    return (forward(moved, batch["x"]) ** 2).mean()


def hessian_trace(p, batch):
    potential = lambda x: jnp.tanh(x[:4] @ p["w"][:4]).sum()
    return jax.vmap(lambda x: jnp.trace(jax.hessian(lambda z: potential(x.at[:4].set(z)))(x[:4])))(batch["x"]).mean()


def spectral(p, batch):
    """Complex weights that multiply a Fourier transform; an integer leaf that orders rows; an unused leaf."""
    mixed = jnp.fft.rfft(batch["x"])[:, :64] @ p["filter"]  # [rows, 264]
    return (jnp.abs(mixed[:, p["order"] % 264]) ** 2).mean() / 100


def make_spectral(key):
    real, imag = jax.random.normal(key, (2, 64, 264))
    order = jax.random.permutation(key, 16_901)
    return {"filter": jax.lax.complex(real, imag) / 8, "order": order, "unused": jnp.ones((D, OUT))}


def neural_ode(p, batch):
    """Hidden units that move by a differential equation: the rule of its solver indexes constant times."""
    field = lambda y, t, w, bias: jnp.tanh(y @ w + bias)[:, :D] * t
    path = odeint(field, batch["x"], jnp.array([0.0, 0.5, 1.0]), p["w"], p["bias"], rtol=1e-6, atol=1e-7)
    return (path[-1] @ p["w"] @ p["v"]).var(-1).mean()


class Unused(nnx.Module):
    def __init__(self, rngs):
        self.used, self.unused = nnx.Linear(D, OUT, rngs=rngs), nnx.Linear(D, OUT, rngs=rngs)
        self.steps = nnx.Param(jnp.arange(16, dtype=jnp.int32))

    def __call__(self, x):
        self.unused(x)
        return self.used(x)[:, self.steps[...]]


class LinenUnused(nn.Module):
    @nn.compact
    def __call__(self, x):
        nn.Dense(OUT, name="unused")(x)
        return nn.Dense(OUT, name="used")(x)


@nnx.custom_vjp
def reversed_gradient(linear, x):
    return linear(x)


def _reversed_bwd(residuals, grads):
    x, kernel = residuals
    _, grad = grads
    return nnx.State({"kernel": -(x.T @ grad), "bias": -grad.sum(0)}), grad @ kernel.T


reversed_gradient.defvjp(lambda linear, x: (reversed_gradient(linear, x), (x, linear.kernel[...])), _reversed_bwd)


class WithRule(nnx.Module):
    """A layer that climbs instead of descending, by NNX's own transform."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(D, OUT, rngs=rngs)

    def __call__(self, x):
        return reversed_gradient(self.linear, x)


class LinenWithRule(nn.Module):
    """A layer whose gradient is replaced by its sign, by Linen's own transform."""

    @nn.compact
    def __call__(self, x):
        def fwd(module, x):
            return nn.vjp(lambda m, x: m(x), module, x)

        def bwd(vjp, grad):
            params, x = vjp(grad)
            return jax.tree.map(jnp.sign, params), x

        return nn.custom_vjp(lambda m, x: m(x), forward_fn=fwd, backward_fn=bwd)(nn.Dense(OUT), x)


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(D)}
pure = lambda loss, make=make, **options: Case(Pure(make), loss, BATCH, **options)
CASES = {
    "custom_vjp": pure(by_product(clipped_product), per_device=True),  # what is clipped depends on the rows
    "custom_vjp with a static argument": pure(by_product(functools.partial(scaled_product, 0.7))),
    "custom_jvp": pure(by_product(smooth_product)),
    "pallas_call": pure(by_product(pallas_product)),
    "l2 penalty": pure(l2_penalty, uses={"w": 2, "v": 2}),
    "straight to the output": pure(straight_out, uses={"w": 3, "v": 2}),
    "gradient penalty": pure(gradient_penalty, uses={"w": 3, "v": 2}),
    "jvp": pure(directional, uses={"w": 2, "v": 2}),
    "gradient by parameters": pure(derivative_by_parameters, per_device=True, uses={"w": 2, "v": 3}),
    "neural ode": pure(neural_ode, per_device=True, uses={"w": 2}, rtol=1e-4, full=True),  # steps by rows
    "hessian": pure(hessian_trace, uses={"w": 3, "v": 0}),
    "complex, integer and unused": pure(spectral, make_spectral, uses={"unused": 0}),
    "nnx unused": Case(lambda rngs: Unused(rngs), squares, BATCH, uses={"unused.kernel": 0, "steps": 3}),
    "linen unused": Case(LinenUnused(), squares, BATCH, uses={"unused.kernel": 0}),
    "nnx custom_vjp": Case(lambda rngs: WithRule(rngs), squares, BATCH),
    "linen custom_vjp": Case(LinenWithRule(), squares, BATCH, per_device=True),
}
