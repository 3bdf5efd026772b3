"""A Linen module as two pure functions."""

from collections.abc import Callable

import jax
from flax import linen as nn

from jzero.flax.batch_norm import synchronise_linen
from jzero.flax.model import Model, Outcome


def linen_model(module: nn.Module, loss: Callable) -> Model:
    def rngs(key):
        return {"params": key, "dropout": jax.random.fold_in(key, 1)}

    def init(key, batch):
        variables = nn.init(lambda m: loss(m, batch, True), module)(rngs(key))
        variables = nn.unbox(variables)
        _, after = jax.eval_shape(
            nn.apply(lambda m: loss(m, batch, True), module, mutable=True), variables, rngs=rngs(key)
        )
        params = variables.pop("params", {})
        # A collection that grows when the model runs is sown into: it belongs to one call and is not state.
        lasts = lambda name: jax.tree.structure(after[name]) == jax.tree.structure(variables[name])
        return params, {name: variables[name] for name in variables if lasts(name)}

    def apply(params, model_state, batch, key, train):
        constant = ["params"] if train else ["params", *model_state]
        run = nn.apply(lambda m: loss(m, batch, train), module, mutable=nn.DenyList(constant))
        with nn.intercept_methods(synchronise_linen):
            (value, metrics), changed = run({"params": params, **model_state}, rngs=rngs(key))
        return Outcome(value, metrics, {name: changed.get(name, old) for name, old in model_state.items()})

    return Model(init, apply)
