"""A function that makes an NNX module, as two pure functions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jzero.errors import ModelError
from jzero.flax.batch_norm import follow_the_engine, synchronise_linen
from jzero.flax.model import Model, Outcome
from jzero.flax.surroundings import say_layouts
from jzero.flax.tied import tied_names

_MODES = "deterministic", "use_running_average"
"""What NNX's layers call evaluation; `Module.train` and `eval` switch both."""


def nnx_model(factory: Callable[[nnx.Rngs], object], loss: Callable) -> Model:
    def make(rngs):
        with nnx.use_eager_sharding(False):  # where arrays lie is not the model's to say
            module = factory(rngs)
        if not isinstance(module, nnx.Module):
            raise ModelError(f"model(rngs) returned a {type(module).__name__}; it must return a flax.nnx.Module.")
        return _with_arrays_as_data(module)

    kinds = (nnx.Param, nnx.RngState, ...)
    aliases: dict[str, str] = {}
    graphdefs: list[nnx.GraphDef] = []

    # Making a module is slow to trace, so that it is traced once for whatever needs its shapes or its values. It is
    # split while arrays are arrays: in a container that a module holds, NNX would not know their shapes for data.
    @jax.jit
    def parts(key):
        module = make(nnx.Rngs(key))
        aliases.update(tied_names(module))
        graphdef, *states = nnx.split(module, *kinds)
        graphdefs[:] = [graphdef]
        return states

    shapes = jax.eval_shape(parts, jax.eval_shape(jax.random.key, 0))
    (graphdef,) = graphdefs
    variables = [v for state in shapes for _, v in nnx.to_flat_state(state) if isinstance(v, nnx.Variable)]
    say_layouts(sum(bool(v.get_metadata().get("out_sharding")) for v in variables))
    as_params, as_streams, as_rest = (jax.tree.structure(s) for s in shapes)
    streams_shapes = jax.tree.leaves(shapes[1])

    def init(key, batch):
        params, _, rest = parts(key)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def fresh_streams(key):
        def fresh(i, like):
            if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
                return jnp.zeros(like.shape, like.dtype)  # the stream's call counter
            stream = jax.random.fold_in(key, i)
            return jax.random.split(stream, like.shape) if like.shape else stream

        return as_streams.unflatten([fresh(i, like) for i, like in enumerate(streams_shapes)])

    def apply(params, model_state, batch, key, train):
        states = (as_params.unflatten(jax.tree.leaves(params)), as_rest.unflatten(jax.tree.leaves(model_state)))
        module = nnx.merge(graphdef, states[0], fresh_streams(key), states[1], copy=True)
        _switch(module, train)
        follow_the_engine(module)
        with nn.intercept_methods(synchronise_linen):
            value, metrics = loss(module, batch, train)
        # The loss may leave new variables behind (sown intermediates); only those that last are state.
        lasting = dict(nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))))
        kept = [lasting[path] for path, _ in nnx.to_flat_state(shapes[2])]
        kept = [x.get_value() if isinstance(x, nnx.Variable) else x for x in kept]
        return Outcome(value, metrics, jax.tree.structure(model_state).unflatten(kept))

    types = {".".join(map(str, path)): type(param) for path, param in nnx.to_flat_state(shapes[0])}
    return Model(init, apply, aliases, types)


def _switch(module: nnx.Module, train: bool) -> None:
    """To training or evaluation; a layer that was made to evaluate, which freezes it, stays so."""
    frozen = [(part, name) for _, part in nnx.iter_modules(module) for name in _MODES if _is_on(part, name)]
    (module.train if train else module.eval)()
    for part, name in frozen:
        setattr(part, name, True)


def _is_on(part: nnx.Module, name: str) -> bool:
    return vars(part).get(name) is True


def _with_arrays_as_data(module: nnx.Module) -> nnx.Module:
    """Marks plain arrays that a module holds as data: while traced, unlike otherwise, NNX takes them for static."""
    for _, part in list(nnx.iter_graph(module)):
        if isinstance(part, nnx.Pytree):
            for name, value in list(vars(part).items()):
                if isinstance(value, jax.Array) and not nnx.is_data(value):
                    setattr(part, name, nnx.data(value))
    return module
