"""What the tests of all model families do alike: uneven weights, losses of one form, the reach of a dtype."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.jaxpr import inner_jaxprs, subprogram


def uneven(model: nnx.Module, seed: int = 7, by: float = 0.1) -> dict:
    """A model's parameters as plain arrays, moved so that no mistake hides behind zeros and ones."""
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params))))
    return jax.tree.map(lambda x: x + by * jax.random.normal(next(keys), x.shape, x.dtype), params)


def with_params(model: nnx.Module, params: Any) -> nnx.Module:
    """A copy of a model with other parameters."""
    graphdef, abstract, rest = nnx.split(model, nnx.Param, ...)
    return nnx.merge(graphdef, jax.tree.structure(abstract).unflatten(jax.tree.leaves(params)), rest, copy=True)


def cast(params: Any, dtype: Any) -> Any:
    """The parameters in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def value_and_grad(model: nnx.Module, loss_fn: Any, params: Any, batch: Any) -> tuple[jax.Array, Any]:
    """Loss and gradients, the gradients named as the parameters are."""
    return jax.jit(jax.value_and_grad(lambda p: loss_fn(with_params(model, p), batch)))(params)


def product_dtypes(fn: Any, *args: Any) -> set:
    """The dtypes that enter matrix products and convolutions anywhere in a function."""
    return set(_product_dtypes(jax.make_jaxpr(fn)(*args).jaxpr))


def _product_dtypes(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            yield from (v.aval.dtype for v in eqn.invars)
        for inner in inner_jaxprs(eqn):
            yield from _product_dtypes(subprogram(inner).jaxpr)


def to_numpy(tree: Any) -> Any:
    """Copies in float64."""
    return jax.tree.map(lambda x: jax.device_get(x.astype(jnp.float32)).astype("float64"), tree)
