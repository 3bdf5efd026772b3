"""A user's batch: what is checked before it is spread over the devices, and how it is.

Numbers are never changed in silence: whole numbers that the program's 32 bits cannot hold, and dtypes other than the
sample's, are refused.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from jzero.base.types import Batch, PyTree
from jzero.errors import BatchError, JzeroError
from jzero.sharding.mesh import DATA_AXES
from jzero.sharding.placement import path_name


def as_sampled(batch: Batch, expected: Batch, what: str) -> Batch:
    """Brings the leaves of a batch into the sample's dtypes, as NumPy arrays.

    Args:
        batch: a user's batch.
        expected: the abstract batch that programs are made for.
        what: what a message calls it, such as "batch".

    Returns:
        The same values, in a tree like the sample's.

    Raises:
        BatchError: leaves that are missing or too many, that hold no numbers, that are of another kind than the
            sample's, or whose values its dtype cannot hold.

    Example:
        >>> like = {"id": jax.ShapeDtypeStruct((1, 2), np.int32)}
        >>> as_sampled({"id": np.array([7, 8])}, like, "batch")["id"].dtype.name
        'int32'
    """
    if jax.tree.structure(batch) != jax.tree.structure(expected):
        _refuse_structure(batch, expected, what)

    def one(path: KeyPath, like: jax.ShapeDtypeStruct, x: PyTree) -> np.ndarray:
        return _in_dtype(_array(x, f"{what} leaf {_name(path)}"), like.dtype, f"{what} leaf {_name(path)}")

    return jax.tree_util.tree_map_with_path(one, expected, batch)


def spread(batch: Batch, expected: Batch, rows: int, why: str) -> Batch:
    """Puts a training batch on the mesh, `[rows, ...]` -> `[accumulation, micro-batch, ...]`.

    Args:
        batch: from `as_sampled`.
        expected: abstract, with shardings.
        rows: that this process must give.
        why: where that number comes from.

    Raises:
        BatchError: with the leaf, its shape, and the shape that it must have.
    """

    def one(path: KeyPath, like: jax.ShapeDtypeStruct, x: np.ndarray) -> jax.Array:
        wanted = (rows, *like.shape[2:])
        if x.shape != wanted:
            smaller = x.shape[1:] == wanted[1:] and x.ndim and 0 < x.shape[0] < rows
            advice = (
                " The last, smaller batch of an epoch is left out, or filled up with rows that a loss which returns a "
                "jzero.Mean gives no weight." * smaller
            )
            raise BatchError(f"batch leaf {_name(path)} has shape {x.shape}; expected {wanted}: {why}.{advice}")
        n_micro = like.shape[0]
        local = x.reshape(n_micro, rows // n_micro, *x.shape[1:])
        assert like.sharding is not None
        return jax.make_array_from_process_local_data(like.sharding, local, like.shape)

    return jax.tree_util.tree_map_with_path(one, expected, batch)


def rows_to_evaluate(batch: Batch, expected: Batch) -> int:
    """How many rows a batch to evaluate has, after checking that all leaves have them, and the sample's rank.

    Raises:
        BatchError: with the leaf and its shape.
    """
    shapes = {_name(path): np.shape(x) for path, x in jax.tree_util.tree_leaves_with_path(batch)}
    for name, shape in shapes.items():
        if not shape or not shape[0]:
            raise BatchError(f"eval_batch leaf {name} has shape {shape}; it needs one row or more.")
    first, rows = next((name, shape[0]) for name, shape in shapes.items())
    for (name, shape), like in zip(shapes.items(), jax.tree.leaves(expected), strict=True):
        if len(shape) != len(like.shape) - 1:
            raise BatchError(
                f"eval_batch leaf {name} has shape {shape}; in the sample it had {len(like.shape) - 1} dimensions, "
                f"as {('rows', *like.shape[2:])}."
            )
        if shape[0] != rows:
            raise BatchError(f"eval_batch leaf {name} has {shape[0]} rows, but {first} has {rows}.")
    if not rows:
        raise BatchError(f"eval_batch leaf {first} has shape {shapes[first]}, which is no row at all.")
    return rows


def spread_rows(batch: Batch, mesh: Mesh, part: slice, *, divided: bool) -> Batch:
    """Puts some rows of a batch on the mesh: divided over its data axes, or whole on each device."""
    sharding = NamedSharding(mesh, PartitionSpec(DATA_AXES) if divided else PartitionSpec())
    place: Callable[[np.ndarray], jax.Array] = lambda x: jax.make_array_from_process_local_data(sharding, x[part])
    return jax.tree.map(place, batch)


def _name(path: KeyPath) -> str:
    return path_name(path) or "(the batch itself)"


def _refuse_structure(batch: Batch, expected: Batch, what: str) -> None:
    named = lambda tree: [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    given, wanted = named(batch), named(expected)
    missing, extra = ([n for n in some if n not in others] for some, others in ((wanted, given), (given, wanted)))
    listed = lambda names: f"{', '.join(names[:5])}{', …' * (len(names) > 5)}"
    parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"has {listed(extra)} as well"] * bool(extra)
    if not parts:
        parts = [f"has the structure {jax.tree.structure(batch)}, the sample {jax.tree.structure(expected)}"]
    raise BatchError(f"{what} {' and '.join(parts)}; its leaves must be those of the sample, which are arrays.")


def _array(x: PyTree, name: str) -> np.ndarray:
    try:
        array = np.asarray(x)
    except (ValueError, TypeError) as error:
        raise BatchError(f"{name} is no array: {str(error).splitlines()[0]}") from None
    if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and array.dtype.names):
        raise BatchError(f"{name} holds {array.dtype}, which is no number; turn it into numbers first.")
    return array


def _in_dtype(x: np.ndarray, dtype: DTypeLike, name: str) -> np.ndarray:
    """The same numbers in the sample's dtype."""
    wanted = jnp.dtype(dtype)
    is_wider = wanted.kind in {"i": "i", "u": "iu", "f": "f", "c": "c"}.get(x.dtype.kind, "")
    is_exact = is_wider and np.can_cast(x.dtype, wanted, "safe")
    if not is_exact and jax.dtypes.canonicalize_dtype(x.dtype) != wanted:
        raise BatchError(f"{name} is {x.dtype}; the sample had {wanted}.")
    return fitting(x, wanted, name)


def fitting(x: np.ndarray, dtype: DTypeLike, name: str, error: type[JzeroError] = BatchError) -> np.ndarray:
    """Casts numbers to a dtype that holds them.

    Args:
        x: whole or floating numbers.
        dtype: such as what JAX makes of NumPy's 64 bits.
        name: what a message calls them.
        error: what is raised.

    Raises:
        JzeroError: whole numbers that do not fit, or floating ones that become infinite.

    Example:
        >>> fitting(np.array([2**31]), np.int32, "ids")
        Traceback (most recent call last):
        jzero.errors.BatchError: ids holds 2147483648, which int32 cannot hold; ...
    """
    to = jnp.dtype(dtype)
    if x.dtype == to or np.can_cast(x.dtype, to, "safe"):
        return x.astype(to, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = x.astype(to)
    if x.dtype.kind in "iu" and to.kind in "iu" and (lost := narrow.astype(x.dtype) != x).any():
        raise error(
            f"{name} holds {x[lost].flat[0]}, which {to} cannot hold; map it to smaller numbers, or let JAX have 64 "
            "bits (jax_enable_x64)."
        )
    if x.dtype.kind == "f" and (lost := np.isinf(narrow.astype(np.float32)) & ~np.isinf(x)).any():
        raise error(f"{name} holds {x[lost].flat[0]:g}, which is infinite in {to}.")
    return narrow
