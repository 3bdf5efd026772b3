"""Which leaves of the batch only the loss sees, so that they need not be rounded to the dtype that a model computes in.

A regression target of 999 is 1000 in bf16, and a weight of 1/3 is off by a thousandth.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jax.sharding import Mesh

from jzero.base.types import Batch, ModelState, Params
from jzero.errors import JzeroError
from jzero.flax.model import Model
from jzero.jaxpr import Program
from jzero.jaxpr.weights import acted_on, product_dtypes
from jzero.zero.precision import Precision, batch_name
from jzero.zero.shapes import traced_loss


def with_targets(
    model: Model, dtypes: Precision, mesh: Mesh, params: Params, model_state: ModelState, local_batch: Batch
) -> Precision:
    """Finds floating leaves of the batch that no weight acts on, and lets them enter the loss as they are.

    A leaf stays rounded where the model would compute otherwise than it does now: in another dtype, or not at all, as
    under strict promotion of dtypes.

    Args:
        model: from `adapted`.
        dtypes: of the run.
        mesh: the devices.
        params: abstract.
        model_state: abstract.
        local_batch: abstract rows of one device.

    Returns:
        `dtypes` with the names of these leaves.
    """
    if not (rounded := dtypes.rounded(local_batch)):
        return dtypes
    arguments = params, model_state, local_batch
    loss: Callable[[Precision], Program] = lambda dtypes: traced_loss(model, dtypes, mesh, *arguments)
    program = loss(dtypes)
    n_params, first = len(jax.tree.leaves(params)), len(jax.tree.leaves((params, model_state)))
    before, seen = product_dtypes(program), acted_on(program, range(n_params))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(local_batch)]
    unseen = [name for i, name in enumerate(map(batch_name, paths), first) if i not in seen and name in rounded]

    def fits(names: Sequence[str]) -> bool:
        try:
            return product_dtypes(loss(replace(dtypes, targets=tuple(names)))) == before
        except (TypeError, ValueError, AssertionError, JzeroError):  # JAX's and the loss's own, of dtypes that differ
            return False

    if not unseen or fits(unseen):
        return replace(dtypes, targets=tuple(unseen))
    chosen: list[str] = []
    for name in unseen if len(unseen) > 1 else ():
        chosen += [name] * fits([*chosen, name])
    return replace(dtypes, targets=tuple(chosen))
