"""Parameters and model state that a user brings: checked by name against the model's, and brought into its trees."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jzero.base.types import ModelState, Params, Placements, PyTree
from jzero.errors import ModelError
from jzero.sharding.placement import path_name
from jzero.zero.batches import fitting
from jzero.zero.state import TrainState

PARAMS = "params"
"""The collection that Linen calls so; one tree may hold it beside the others."""


class Given(NamedTuple):
    """What a user gives in the place of what the model would make.

    Attributes:
        params: like the model's parameters, true shapes; None for the model's own.
        model_state: like the model's state; None for the model's own.
    """

    params: Params | None
    model_state: ModelState | None


def given_like_model(
    params: PyTree | None, model_state: PyTree | None, placements: TrainState, abstract: TrainState
) -> Given:
    """Checks what was given, and brings it into the model's trees.

    Args:
        params: parameters; or all variables of the model in one tree, as Linen's `init` or NNX's `state` have them.
        model_state: such as `{"batch_stats": ...}`.
        placements: of the model's state, with true shapes.
        abstract: the model's state, with dtypes.

    Raises:
        ModelError: leaves that are missing, too many or of other shapes, each by its name; numbers that do not fit.
    """
    if params is not None and model_state is None:
        params, model_state = _split_variables(params, placements)
    return Given(
        None if params is None else _like("params", params, placements.params, abstract.params),
        None
        if model_state is None
        else _like("model_state", model_state, placements.model_state, abstract.model_state),
    )


def with_model_state(state: TrainState, model_state: ModelState | None) -> TrainState:
    """A state with the given model state where the model's own lies."""
    if model_state is None:
        return state
    place = lambda new, old: jax.device_put(jnp.asarray(new, old.dtype), old.sharding)
    leaves = jax.tree.map(place, model_state, state.model_state)
    return TrainState(**{**vars(state), "model_state": leaves})


def _split_variables(variables: PyTree, placements: TrainState) -> tuple[PyTree, PyTree | None]:
    """Takes one tree of all variables apart; parameters alone come back as they are."""
    states, names = _names(placements.model_state), _names(variables)
    if not states or not states <= names:
        return variables, None
    if isinstance(variables, Mapping) and names == states | {f"{PARAMS}.{name}" for name in _names(placements.params)}:
        return variables[PARAMS], {name: part for name, part in variables.items() if name != PARAMS}
    of_state = {n: x for n, x in _by_name(variables).items() if n in states}
    return {n: x for n, x in _by_name(variables).items() if n not in states}, of_state


def _like(what: str, given: PyTree, placements: Placements, abstract: PyTree) -> PyTree:
    leaves = _by_name(given)
    expected = {name: x.shape for name, x in _by_name(placements).items()}
    shapes = {name: tuple(np.shape(x)) for name, x in leaves.items()}
    one = {"params": "parameter"}.get(what, "state")
    if shapes != expected:
        wrong = [
            f"{name}: {shapes.get(name, 'missing')}, expected {expected.get(name, f'no such {one}')}"
            for name in sorted(shapes.keys() | expected.keys())
            if shapes.get(name) != expected.get(name)
        ]
        raise ModelError(f"{what} do not fit the model in {len(wrong)} leaves: {'; '.join(wrong[:5])}.")
    dtypes = {name: x.dtype for name, x in _by_name(abstract).items()}
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _in_dtype(leaves[path_name(path)], dtypes[path_name(path)], f"{what} leaf {path_name(path)}"),
        placements,
    )


def _in_dtype(x: PyTree, dtype: jnp.dtype, name: str) -> PyTree:
    """NumPy's numbers in the dtype that they last in; JAX's arrays stay where they are until they are placed."""
    if isinstance(x, jax.Array):
        return x
    array = np.asarray(x)
    if array.dtype.kind not in "biufcV":
        raise ModelError(f"{name} holds {array.dtype}, which is no number.")
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.issubdtype(dtype, jnp.floating):
        return array
    return fitting(array, dtype, name, ModelError)


def _by_name(tree: PyTree) -> dict[str, PyTree]:
    return {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def _names(tree: PyTree) -> set[str]:
    return set(_by_name(tree))
