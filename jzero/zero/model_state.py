"""Model state that a step changes on every device by other rows: what may be averaged, and what cannot be right."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jzero.base.types import Batch, ModelState, Params
from jzero.errors import ModelError
from jzero.flax.model import Model
from jzero.jaxpr.varying import may_differ
from jzero.sharding.mesh import DATA_AXES
from jzero.sharding.placement import path_name
from jzero.zero import shapes
from jzero.zero.precision import Precision


def averaged_state(
    model: Model, dtypes: Precision, mesh: Mesh, params: Params, model_state: ModelState, local_batch: Batch
) -> tuple[str, ...]:
    """Finds the model state that each device changes by its own rows.

    Args:
        model: from `adapted`.
        dtypes: of the run.
        mesh: the devices.
        params: abstract.
        model_state: abstract.
        local_batch: abstract rows of one device.

    Returns:
        The names of what is averaged over the devices after a step: floating state that differs between them.

    Raises:
        ModelError: state that cannot be averaged, with what to write: whole numbers, and what has an entry a row.
    """
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model_state)]
    if not names:
        return ()
    program = shapes.traced_loss(
        model, dtypes, mesh, params, model_state, local_batch, lambda outcome: outcome.model_state
    )
    n_alike, n_rows = len(jax.tree.leaves((params, model_state))), len(jax.tree.leaves(local_batch))
    differs = may_differ(program, [False] * n_alike + [True] * (n_rows + 1), DATA_AXES)  # rows, and the random key
    twice = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype), local_batch)
    _, of_twice = shapes.abstract_model(model, dtypes, twice)
    changed = zip(names, jax.tree.leaves(model_state), jax.tree.leaves(of_twice), differs, strict=True)
    for name, leaf, other, differ in changed:
        if differ and leaf.shape != other.shape:
            raise ModelError(
                f"the model's state {name}, of shape {leaf.shape}, has entries for the rows of a batch, which lie on "
                "different devices and are others in the next step; make it inside of the loss, or pass it in with the "
                "batch and return what is to be kept as a metric."
            )
        if differ and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ModelError(
                f"the model's state {name} holds {leaf.dtype} that depend on the rows, which every device has others "
                "of, so that each would keep another number; bring them together where the model computes them, such "
                "as with jzero.psum(count) for a count over the whole micro-batch."
            )
    return tuple(name for name, differ in zip(names, differs, strict=True) if differ)
