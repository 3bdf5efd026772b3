"""Whether a step can be taken: all gradients are finite and, in fp16, fit fp16; and if not, who is at fault.

One pass over the gradients gives a number or two per parameter, each device looking at its own shard, and one small sum
brings them together. So the norm, the verdict and the name of the culprit cost what the norm alone would.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jzero.base.types import Casts, Grads, Placements, PyTree
from jzero.offload.host.stream import reduce_in_pieces, serialize_after
from jzero.sharding.host_memory import is_on_host
from jzero.sharding.trees import is_placement


class GradStats(NamedTuple):
    """What is known about the gradients of a step.

    Attributes:
        norm: `f32[]`, their global L2 norm.
        finite: `bool[]`, whether the step can be taken.
        leaf: `int32[]`, the index, among the trainable parameters, of the first whose gradient is at fault; -1 if none.
    """

    norm: jax.Array
    finite: jax.Array
    leaf: jax.Array


def measure_grads(
    grads: Grads, placements: Placements, casts: Casts, scale: jax.Array, unscale: jax.Array, piece_elements: int
) -> GradStats:
    """Looks at the gradients of a step; for use inside `shard_map`.

    In fp16 the scaled gradients must fit fp16 too. Accumulation in fp32 hides an overflow that DeepSpeed, which
    accumulates in fp16, sees and answers with a smaller scale; judging the sum by what fp16 can hold keeps the scale,
    and so the skipped steps, the same.

    Args:
        grads: this device's part of the summed and unscaled gradients; those on the host are not unscaled yet.
        placements: pytree of `Placement` like them.
        casts: pytree of tuples of dtypes like them: what each parameter is cast to for the loss.
        scale: `f32[]`, the loss scale.
        unscale: `f32[]`, what gradients on the host are to be multiplied by.
        piece_elements: how much of one of those is looked at at a time.

    Returns:
        The same on every device.
    """
    leaves, treedef = jax.tree.flatten(grads)
    in_fp16 = [jnp.dtype(jnp.float16) in cast for cast in treedef.flatten_up_to(casts)]
    squares, misfits, before = [], [], jnp.zeros(2, jnp.float32)
    for grad, half in zip(leaves, in_fp16, strict=True):
        if is_on_host(grad):  # one after the other, for each comes in pieces
            grad, before = serialize_after(grad, before)
            look = lambda x, half=half: jnp.stack(_look(x * unscale.astype(x.dtype), scale if half else None))
            before = reduce_in_pieces(look, grad, jnp.zeros(2, jnp.float32), piece_elements)
            seen = (before[0], before[1])
        else:
            seen = _look(grad, scale if half else None)
        squares.append(seen[0])
        misfits.append(seen[1])
    found = jnp.stack([jnp.stack(squares), jnp.stack(misfits)])
    axes = [p.axes for p in jax.tree.leaves(placements, is_leaf=is_placement)]
    for over in sorted({*axes} - {()}):
        found = jnp.where(np.array([a == over for a in axes]), jax.lax.psum(found, over), found)
    norm = jnp.sqrt(found[0].sum())
    bad = ~jnp.isfinite(found[0]) | (found[1] > 0)
    return GradStats(norm, jnp.isfinite(norm) & ~bad.any(), first(bad))


def _look(grad: jax.Array, scale: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The sum of squares, `f32[]`, and whether multiplied by a scale something does not fit fp16, `f32[]` 0 or 1."""
    squares = optax.tree.norm(grad, squared=True).astype(jnp.float32)
    if scale is None:
        return squares, jnp.zeros((), jnp.float32)
    return squares, (~jnp.isfinite((grad * scale).astype(jnp.float16))).any().astype(jnp.float32)


def first(flags: jax.Array) -> jax.Array:
    """The index of the first flag that is set, -1 if none is: `bool[n]` -> `int32[]`.

    Example:
        >>> int(first(jnp.array([False, True, True]))), int(first(jnp.array([False])))
        (1, -1)
    """
    return jnp.where(flags.any(), jnp.argmax(flags).astype(jnp.int32), -1)


def all_finite(tree: PyTree) -> jax.Array:
    """Whether all numbers of a pytree of floating or complex arrays are finite: `bool[]`.

    Their sum tells, for one addition a number. Numbers so large that only the sum is infinite do not pass, but then
    neither does their norm.
    """
    reals = [jnp.abs(x) if jnp.iscomplexobj(x) else x for x in jax.tree.leaves(tree)]
    sums = [x.sum(dtype=jnp.float32) for x in reals]
    return jnp.isfinite(jnp.stack(sums).sum()) if sums else jnp.asarray(True)


def why_skipped(metrics: Mapping[str, float | jax.Array], names: Sequence[str], n_micro: int) -> str:
    """Says in one sentence why a step was skipped.

    Args:
        metrics: those of a skipped step, on the host or still on the devices.
        names: of the trainable parameters, in flattening order.
        n_micro: micro-batches in a step.

    Returns:
        The sentence, without a full stop.

    Example:
        >>> metrics = {"applied_steps": 15, "skipped_steps": 2, "loss": 2.5, "loss_scale": 1.0}
        >>> metrics |= {"nonfinite_leaf": 1, "nonfinite_micro_batch": 2, "grad_norm": float("nan")}
        >>> why_skipped(metrics, ["wte", "mlp.up.kernel"], 4)
        'step 17 was skipped: the gradient of mlp.up.kernel is not finite, first in micro-batch 3 of 4'
    """
    leaf, micro, loss, scale = (
        float(metrics[k]) for k in ("nonfinite_leaf", "nonfinite_micro_batch", "loss", "loss_scale")
    )
    step = int(metrics["applied_steps"]) + int(metrics["skipped_steps"])
    what = "the norm of all gradients" if leaf < 0 else f"the gradient of {names[int(leaf)]}"
    how = "is not finite" if scale == 1 or not math.isfinite(loss) else f"overflows at loss scale {scale:g}"
    where = f", first in micro-batch {micro + 1:.0f} of {n_micro}" if micro >= 0 and n_micro > 1 else ""
    lost = "" if math.isfinite(loss) else f", and the loss is {loss}"
    return f"step {step} was skipped: {what} {how}{where}{lost}"
