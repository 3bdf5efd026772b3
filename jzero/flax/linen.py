"""A Linen module as two pure functions."""

import re
from collections.abc import Callable

import jax
from flax import errors
from flax import linen as nn

from jzero.errors import ModelError
from jzero.flax.batch_norm import synchronise_linen
from jzero.flax.model import Model, Outcome
from jzero.flax.surroundings import place_in, say_layouts


def linen_model(module: nn.Module, loss: Callable) -> Model:
    def rngs(key):
        return {"params": key, "dropout": jax.random.fold_in(key, 1)}

    def init(key, batch):
        try:
            variables = nn.init(lambda m: loss(m, batch, True), module)(rngs(key))
        except (errors.ApplyScopeInvalidVariablesTypeError, KeyError, TypeError) as error:
            if not _wants_parameters(error, module):
                raise
            raise ModelError(
                f"loss_fn ({place_in(error)}) takes its first argument for parameters, but gets the model, "
                f"{type(module).__name__}, with its parameters inside: write `def loss_fn(model, batch)` and "
                '`model(batch["x"])` in the place of `model.apply({"params": params}, batch["x"])`.'
            ) from error
        is_box = lambda x: isinstance(x, nn.meta.AxisMetadata)
        say_layouts(sum(map(is_box, jax.tree.leaves(variables, is_leaf=is_box))))
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
            try:
                (value, metrics), changed = run({"params": params, **model_state}, rngs=rngs(key))
            except errors.ModifyScopeVariableError as error:
                if train:
                    raise
                raise ModelError(
                    f"the model changes its state in evaluation ({str(error).split(' (http')[0].rstrip('.')}): give "
                    "loss_fn a parameter named `train` and hand it on to the model, which then uses what it has, such "
                    "as `nn.BatchNorm(use_running_average=not train)`."
                ) from error
        return Outcome(value, metrics, {name: changed.get(name, old) for name, old in model_state.items()})

    return Model(init, apply)


def _wants_parameters(error: Exception, module: nn.Module) -> bool:
    """Whether a loss failed because it takes its first argument for parameters, as it would be without jzero."""
    is_lookup = isinstance(error, TypeError) and re.search(
        f"'{type(module).__name__}'.* is not (subs|iter)", str(error)
    )
    return isinstance(error, errors.ApplyScopeInvalidVariablesTypeError) or bool(is_lookup) or error.args == ("params",)
