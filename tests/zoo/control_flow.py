"""Weights inside branches, loops, jit and shard_map of the model's own."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec

from tests.zoo.case import Case, Pure, floats

D, OUT = 129, 131  # 16899 elements that 8 does not divide


def make(key):
    shapes = {"in": (D, OUT), "a": (OUT, OUT), "b": (OUT, OUT), "out": (OUT, 16)}
    return {n: jax.random.normal(jax.random.fold_in(key, i), s) / 9 for i, (n, s) in enumerate(shapes.items())}


def with_core(core):
    """A loss with `core(params, hidden)` between two layers."""

    def loss(params, batch):
        return (core(params, jnp.tanh(batch["x"] @ params["in"])) @ params["out"]).astype(jnp.float32).var(-1).mean()

    return loss


def cond(p, x):
    # Devices see other rows, so they take other branches.
    return jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ p["a"]), lambda x: jnp.sin(x @ p["b"]), x)


def switch(p, x):
    branches = [lambda x: jnp.tanh(x @ p["a"]), lambda x: jnp.sin(x @ p["b"]), lambda x: x @ p["a"].T]
    return jax.lax.switch((jnp.abs(x).sum() * 10).astype(jnp.int32) % 3, branches, x)


def select_by_row(p, x):
    """A branch under vmap: both sides are computed for every row."""
    return jax.vmap(lambda x: jax.lax.cond(x.sum() > 0, lambda x: x @ p["a"], lambda x: x @ p["b"], x))(x)


def fori(p, x):
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ p["a"] + x @ p["b"]), x)


def indexed(p, x):
    """A loop that indexes a stack of weights by its counter, which no scan walks over."""
    return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ p["stack"][i]), x)


def scanned_and_whole(p, x):
    """A stack that a loop walks over, and that is used as a whole too."""
    x = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["stack"], reverse=True)[0]
    return x * jnp.exp(-(p["stack"] ** 2).mean())


def counted_by_data(p, x):
    """A loop of unknown length: not differentiated, it only finds a number to scale by."""
    norm = lambda v: jnp.sqrt((v**2).sum())
    unit = lambda v: v / norm(v)

    def body(carry):
        i, v = carry
        return i + 1, unit(jax.lax.stop_gradient(p["a"]) @ v)

    _, v = jax.lax.while_loop(lambda carry: carry[0] < 4, body, (0, unit(jnp.ones(OUT))))
    return jnp.tanh(x @ p["a"]) @ p["b"] / norm(jax.lax.stop_gradient(p["a"]) @ v)


@jax.custom_vjp
def fixed_point(w, x):
    """z = tanh(z w / 4 + x), by iteration until it hardly moves: after other numbers of rounds on other devices."""
    moves = lambda carry: (jnp.abs(carry[0] - carry[1]).max() > 1e-6) & (carry[2] < 60)
    step = lambda carry: (jnp.tanh(carry[0] @ w / 4 + x), carry[0], carry[2] + 1)
    return jax.lax.while_loop(moves, step, (jnp.tanh(x), x, 0))[0]


def _fixed_point_bwd(residuals, grad):
    w, x, z = residuals
    _, vjp = jax.vjp(lambda w, x, z: jnp.tanh(z @ w / 4 + x), w, x, z)
    total = jax.lax.fori_loop(0, 30, lambda _, u: grad + vjp(u)[2], grad)
    return vjp(total)[:2]


def _fixed_point_fwd(w, x):
    z = fixed_point(w, x)
    return z, (w, x, z)


fixed_point.defvjp(_fixed_point_fwd, _fixed_point_bwd)


def equilibrium(p, x):
    return fixed_point(p["a"], x) @ p["b"]


def nested_jit(p, x):
    inner = jax.jit(lambda w, x: jnp.tanh(x @ w))
    outer = jax.jit(lambda p, x: inner(p["b"], inner(p["a"], x)))
    return outer(p, x)


def column_parallel(p, x):
    """A product split over the mesh's third axis by hand."""
    none, columns = PartitionSpec(), PartitionSpec(None, "tensor")
    product = jax.shard_map(lambda x, w: x @ w, in_specs=(none, columns), out_specs=columns, axis_names={"tensor"})
    return jnp.tanh(product(x, p["wide"]))[:, :OUT] @ p["a"]


def make_more(key):
    a, b = jax.random.split(key)
    p = make(key)
    wide, stack = jax.random.normal(a, (OUT, 132)) / 9, jax.random.normal(b, (3, OUT, OUT)) / 9
    return {"in": p["in"], "a": p["a"], "out": p["out"], "wide": wide, "stack": stack}


class Branches(nnx.Module):
    """Flax's own transforms of control flow."""

    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(D, OUT, rngs=rngs), nnx.Linear(D, OUT, rngs=rngs)
        self.loop = nnx.Linear(OUT, OUT, rngs=rngs)

    def __call__(self, x):
        x = nnx.cond(x.sum() > 0, lambda a, b, x: a(x), lambda a, b, x: b(x), self.a, self.b, x)
        _, x = nnx.fori_loop(0, 3, lambda i, carry: (carry[0], jnp.tanh(carry[0](carry[1]))), (self.loop, x))
        return x


class Switch(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(D, OUT, rngs=rngs), nnx.Linear(D, OUT, rngs=rngs)

    def __call__(self, x):
        branches = [lambda a, b, x: a(x), lambda a, b, x: jnp.tanh(b(x)), lambda a, b, x: a(x) * b(x)]
        index = (jnp.abs(x).sum() * 10).astype(jnp.int32) % 3
        return nnx.jit(lambda a, b, x: nnx.switch(index, branches, a, b, x))(self.a, self.b, x)


class LinenBranches(nn.Module):
    @nn.compact
    def __call__(self, x):
        a, b = nn.Dense(OUT, name="a"), nn.Dense(OUT, name="b")
        if self.is_initializing():
            a(x), b(x)
        x = nn.cond(x.sum() > 0, lambda m, x: a(x), lambda m, x: jnp.tanh(b(x)), self, x)
        index = (jnp.abs(x).sum() * 10).astype(jnp.int32) % 2
        c = nn.Dense(16, name="c")
        if self.is_initializing():
            c(x)
        return nn.switch(index, [lambda m, x: c(x), lambda m, x: jnp.sin(c(x))], self, x)


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(D)}


def pure(core, make=make, **options):
    return Case(Pure(make), with_core(core), BATCH, **options)


CASES = {
    "cond": pure(cond, per_device=True),
    "switch": pure(switch, per_device=True),
    # JAX passes each branch its operands through a `stop_gradient` for the rows that do not take it.
    "cond under vmap": pure(select_by_row, forward_uses={"a": 1, "b": 1}),
    "fori_loop": pure(fori),
    "fori_loop over a stack": pure(indexed, make_more, uses={"a": 0, "wide": 0}),
    "scan over a stack used twice": pure(scanned_and_whole, make_more, uses={"a": 0, "wide": 0, "stack": 2}),
    # The loop does not know that nothing flows back into it, and scatters zeros.
    "while_loop, forwards only": pure(counted_by_data, uses={"a": 2}, forward_uses={"a": 1}),
    "while_loop in a custom rule": pure(equilibrium, per_device=True),
    "nested jit": pure(nested_jit),
    "nested shard_map": pure(column_parallel, make_more, tensor=2, uses={"stack": 0}),
    "nnx cond and fori_loop": Case(lambda rngs: Branches(rngs), squares, BATCH, per_device=True),
    "nnx switch under jit": Case(lambda rngs: Switch(rngs), squares, BATCH, per_device=True),
    "linen cond and switch": Case(LinenBranches(), squares, BATCH, per_device=True),
}
