"""Which leaves of the batch only the loss sees, so that they need not be rounded to the dtype that a model computes in.

A regression target of 999 is 1000 in bf16, and a weight of 1/3 is off by a thousandth.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.sharding import Mesh, PartitionSpec

from jzero.base.types import Batch, ModelState, Params
from jzero.errors import JzeroError
from jzero.flax.model import Model
from jzero.jaxpr import Program, trace
from jzero.jaxpr.weights import acted_on, product_dtypes
from jzero.sharding.mesh import shard_over_data
from jzero.zero.precision import Precision, batch_name


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

    def loss(dtypes: Precision) -> tuple[Program, frozenset[int]]:
        return _traced(model, dtypes, mesh, (params, model_state, local_batch))

    program, seen = loss(dtypes)
    before, first = product_dtypes(program), len(jax.tree.leaves((params, model_state)))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(local_batch)]
    unseen = [name for i, name in enumerate(map(batch_name, paths), first) if i not in seen and name in rounded]

    def fits(names: Sequence[str]) -> bool:
        try:
            return product_dtypes(loss(replace(dtypes, targets=tuple(names)))[0]) == before
        except (TypeError, ValueError, AssertionError, JzeroError):  # JAX's and the loss's own, of dtypes that differ
            return False

    if not unseen or fits(unseen):
        return replace(dtypes, targets=tuple(unseen))
    chosen: list[str] = []
    for name in unseen if len(unseen) > 1 else ():
        chosen += [name] * fits([*chosen, name])
    return replace(dtypes, targets=tuple(chosen))


def _traced(
    model: Model, dtypes: Precision, mesh: Mesh, arguments: tuple[Params, ModelState, Batch]
) -> tuple[Program, frozenset[int]]:
    """One device's loss, and the positions of those of its inputs that weights act on."""
    found: list[Program] = []

    def probe(params, model_state, batch, key):
        def total(params, model_state, batch, key):
            return model.apply(dtypes.computed(params), model_state, dtypes.inputs(batch), key, True).loss

        found.append(trace(total, params, model_state, batch, key)[0])
        return ()

    spec, key = PartitionSpec(), jax.eval_shape(jax.random.key, 0)
    jax.eval_shape(shard_over_data(probe, mesh, spec, spec), *arguments, key)
    (program,) = found
    is_param = [i == 0 for i, tree in enumerate((*arguments, key)) for _ in jax.tree.leaves(tree)]
    return program, acted_on(program, is_param)
