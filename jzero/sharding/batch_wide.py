"""For losses over pairs of rows: what the rows of the other devices are, and which device this is.

Inside a loss "the batch" is one device's rows of one micro-batch. A loss whose terms pair rows with each other, such as
CLIP's, gathers the others' here, and is then the same on any number of devices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from jzero.base.types import PyTree
from jzero.errors import ModelError
from jzero.sharding.mesh import DATA_AXES

_alike: ContextVar[bool] = ContextVar("_alike", default=False)


@contextmanager
def every_device_alike() -> Iterator[None]:
    """While tracing: every device computes the same rows, which are then all that there are."""
    token = _alike.set(True)
    try:
        # JAX knows nothing of the variable, and would take a function's trace from where devices had different rows.
        # Metadata is part of what it tells traces apart by, however deep inside the function lies.
        with set_xla_metadata(jzero_rows="alike"):
            yield
    finally:
        _alike.reset(token)


def all_gather(x: PyTree) -> PyTree:
    """The rows of this micro-batch on all devices, for use in a loss.

    Differentiable: what other devices' losses owe to this device's rows comes back to them. A loss that is a mean over
    its own rows, against the gathered ones, is therefore that of the whole micro-batch on one device, at every ZeRO
    stage and with accumulation; negatives span one micro-batch. In `Engine.eval_batch` rows that the devices do not
    divide are a batch of their own.

    Args:
        x: a pytree of arrays `[rows of this device, ...]`.

    Returns:
        The same with `[rows of all devices, ...]`, in the batch's order: those of device `axis_index()` begin at
        `axis_index() * rows`. Outside of jzero's steps, on one device, `x` itself.

    Raises:
        ModelError: a scalar, which has no rows.

    Example:
        >>> import jax.numpy as jnp
        >>> def clip_loss(images, texts):
        ...     logits = images @ all_gather(texts).T
        ...     mine = axis_index() * len(images) + jnp.arange(len(images))
        ...     return -jax.nn.log_softmax(logits)[jnp.arange(len(images)), mine].mean()
        >>> x = jnp.eye(4)
        >>> print(clip_loss(x, x).round(3))
        0.744
    """
    if any(not leaf.ndim for leaf in jax.tree.leaves(x)):
        raise ModelError(
            "jzero.all_gather got a scalar; it gathers rows, the leading dimension. For a sum over all "
            "devices there is jzero.psum."
        )
    if not _is_divided():
        return x
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, DATA_AXES, axis=0, tiled=True), x)


def psum(x: PyTree) -> PyTree:
    """The sum over all devices of what each has, for use in a model or a loss, such as counts that are to last.

    Args:
        x: a pytree of arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> int(psum((jnp.array([1.0, -1.0, 2.0]) > 0).sum()))
        2
    """
    return jax.lax.psum(x, DATA_AXES) if _is_divided() else x


def axis_index() -> jax.Array | int:
    """Which of the devices that take different rows this is, counted from 0 in the order of the batch."""
    return jax.lax.axis_index(DATA_AXES) if _is_divided() else 0


def _is_divided() -> bool:
    """Whether this is traced inside of a step of jzero's, where devices have different rows."""
    return not _alike.get() and all(map(_is_bound, DATA_AXES))


def _is_bound(axis: str) -> bool:
    """Whether collectives may name an axis here; the mesh would not tell where a model is shown none."""
    try:
        jax.lax.axis_size(axis)
    except NameError:
        return False
    return True
