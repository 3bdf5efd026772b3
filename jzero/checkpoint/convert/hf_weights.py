"""The weights of a published checkpoint, read part by part: of each leaf of a model only what is asked for.

Files are mapped into memory rather than read, so that a process touches the bytes of its own shards alone. What it
holds beside them is a buffer of a few megabytes.
"""

import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jzero.base.files import why
from jzero.checkpoint.convert.weights import open_weights
from jzero.checkpoint.format.leaves import brief, is_floating, narrowed
from jzero.checkpoint.format.safetensors import Entry
from jzero.errors import CheckpointError
from jzero.models.hf.load import HFWeights
from jzero.models.hf.rules import TRANSFORMS, Names, Rule, Transform

Index = tuple[slice, ...]
"""Which part of an array is meant: a slice of each dimension."""

_AT_ONCE = 2**20
"""About how many elements pass through the buffer at a time."""

_TURNED = 64
"""How many rows are turned round at a time: so many that what is read and written stays in a processor's caches."""

_NAMED = 5
"""How many names a message lists."""


class LeafSource(NamedTuple):
    """Where a leaf of a model comes from.

    Attributes:
        name: the dotted name of the leaf.
        shape: its shape.
        tensors: the tensors of a file that it is made of: one, or where layers are scanned one for each layer; none
            for a leaf that is made anew.
        transform: what each of them passes through.
        stacked: whether its first dimension counts layers.
        rows: of a leaf whose rows along `dim` are token ids: how many of them the file has.
        dim: see `rows`.
        std: standard deviation of what is made anew; 0 for zeros.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[Entry, ...]
    transform: Transform = "same"
    stacked: bool = False
    rows: int | None = None
    dim: int = 0
    std: float = 0.0

    def read(self, index: Index, dtype: DTypeLike) -> np.ndarray:
        """Reads a part in another dtype.

        Args:
            index: which part; slices without steps, within the shape.
            dtype: of the result.

        Raises:
            CheckpointError: it cannot be read, or a number does not fit the dtype.
        """
        index = tuple(slice(*s.indices(n)) for s, n in zip(index, self.shape, strict=True))
        out = np.empty([s.stop - s.start for s in index], jnp.dtype(dtype))
        try:
            if not self.tensors:
                self._draw(index, out)
            elif self.stacked:
                for layer, part in zip(range(index[0].start, index[0].stop), out, strict=True):
                    copy_into(part, self._view(layer)[index[1:]])
            elif self.rows is None:
                copy_into(out, self._view(0)[index])
            else:
                self._read_rows(index, out)
        except OverflowError as error:
            raise CheckpointError(f"{self.name} cannot be read as {jnp.dtype(dtype)}: {error}.") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.name} cannot be read: {why(error)}.") from error
        return out

    def _view(self, layer: int) -> np.ndarray:
        entry = self.tensors[layer]
        return TRANSFORMS[self.transform].into_leaf(entry.read() if entry.mapped is None else entry.mapped())

    def _read_rows(self, index: Index, out: np.ndarray) -> None:
        """Rows that the file has, and new ones behind them."""
        assert self.rows is not None
        along = index[self.dim]
        kept = max(0, min(along.stop, self.rows) - along.start)
        at = lambda a, b: tuple(slice(a, b) if d == self.dim else slice(None) for d in range(out.ndim))
        if kept:
            within = (*index[: self.dim], slice(along.start, along.start + kept), *index[self.dim + 1 :])
            copy_into(out[at(0, kept)], self._view(0)[within])
        if kept < along.stop - along.start:
            new = (*index[: self.dim], slice(along.start + kept, along.stop), *index[self.dim + 1 :])
            self._draw(new, out[at(kept, None)])

    def _draw(self, index: Index, out: np.ndarray) -> None:
        """Numbers of which each depends on its place alone, so that all processes draw the same."""
        if not self.std:
            out[...] = 0
            return
        seed, dim = zlib.crc32(self.name.encode()), self.dim
        others = tuple(s for d, s in enumerate(index) if d != dim)
        rest = [n for d, n in enumerate(self.shape) if d != dim]
        for i in range(index[dim].start, index[dim].stop):
            row = np.random.default_rng([seed, i]).standard_normal(rest, np.float32) * np.float32(self.std)
            out[tuple(i - index[dim].start if d == dim else slice(None) for d in range(out.ndim))] = row[others]


def copy_into(out: np.ndarray, part: np.ndarray) -> None:
    """Copies numbers into an array of another dtype, some of them at a time and in the order in which they are stored.

    Raises:
        OverflowError: one is too large for the dtype.

    Example:
        >>> out = np.empty((2, 3), np.float32)
        >>> copy_into(out, np.arange(6, dtype=np.float16).reshape(3, 2).T)
        >>> out.tolist()
        [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    """
    turned = part.ndim > 1 and part.strides[0] < part.strides[-1]  # its last dimension is the file's first
    if turned:
        out, part = out.T, part.T
    step = max(1, _AT_ONCE // max(1, part[:1].size)) if part.ndim else 1
    step = min(step, _TURNED) if turned else step
    for at in range(0, len(part), step) if part.ndim else [...]:
        rows = at if at is ... else slice(at, at + step)
        out[rows] = _cast(part[rows], out.dtype)


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if x.dtype == jnp.bfloat16 and dtype == np.float32:  # a shift, several times as fast as NumPy's cast
        return np.left_shift(x.view(np.uint16), np.uint32(16), dtype=np.uint32).view(np.float32)
    return narrowed(x, dtype)


def open_sources(weights: HFWeights, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, LeafSource]:
    """Finds of every leaf of a model what it is made of, and checks that it fits; reads no weights yet.

    Args:
        weights: from `jzero.models.from_hf`.
        shapes: dotted name -> shape, of every leaf of the model.

    Raises:
        CheckpointError: tensors that are missing, too many or of other shapes; files that cannot be read.
    """
    published = weights.published
    names, where = published.names, str(published.folder)
    entries = open_weights(published.folder).entries
    spelt = {rule_name: entries[own] for rule_name, own in names.spelt(list(entries)).items()}
    sources: dict[str, LeafSource] = {}
    used: set[str] = set()
    for rule in names.rules:
        for leaf, tensors in leaves_of(rule, shapes).items():
            found = [spelt[name] for name in tensors if name in spelt]
            sources[leaf] = _source(leaf, shapes[leaf], rule, found, _About(names, where, len(tensors), weights))
            used.update(tensors)
    if others := sorted(shapes.keys() - sources.keys()):
        raise CheckpointError(
            f"the model has {others[0]}, which a {published.family} does not have, and the weights of {where} are of "
            "one; pass the factory that `from_hf` made beside them."
        )
    _refuse_missing([s for leaf, s in sources.items() if not s.tensors and leaf not in names.new], where, names)
    _say_new(list(sources.values()), where)
    left = [name for name in spelt if name not in used and not names.is_dropped(name) and not _tied(name, shapes)]
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise CheckpointError(
            f"{where} holds {', '.join(left[:_NAMED])}{more}, for which a {published.family} as its config.json has it "
            "has no place."
        )
    return sources


def _say_new(sources: Sequence[LeafSource], where: str) -> None:
    """Says once what of a model is not in the files."""
    log = logging.getLogger("jzero")
    if new := [source.name for source in sources if not source.tensors]:
        log.warning("%s does not hold %s: drawn anew, to be trained.", where, ", ".join(new))
    for source in sources:
        if source.rows is not None:
            size = source.shape[source.dim]
            what = (
                f"{size - source.rows} drawn anew" if size > source.rows else f"the last {source.rows - size} left out"
            )
            log.warning("%s: %s has %d token ids here and %d there: %s.", where, source.name, size, source.rows, what)


class _About(NamedTuple):
    """What a source is checked against."""

    names: Names
    where: str
    n_tensors: int
    weights: HFWeights


def leaves_of(rule: Rule, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """The leaves of a model that a rule makes, each with the names of its tensors."""
    if not rule.of_layers:
        return {rule.leaf: [rule.tensor]} if rule.leaf in shapes else {}
    if rule.stacked in shapes:
        return {rule.stacked: [rule.of_layer(n)[0] for n in range(shapes[rule.stacked][0])]}
    leaves: dict[str, list[str]] = {}
    while (pair := rule.of_layer(len(leaves)))[1] in shapes:
        leaves[pair[1]] = [pair[0]]
    return leaves


def _tied(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a tensor is a second copy of the embedding's table, which tied models do without."""
    return name == "lm_head.weight" and "head.kernel" not in shapes


def _source(leaf: str, shape: tuple[int, ...], rule: Rule, found: Sequence[Entry], about: _About) -> LeafSource:
    names, std = about.names, about.weights.published.config.init_std
    stacked, dim = leaf == rule.stacked and rule.of_layers, names.vocabulary.get(leaf, -1)
    new = LeafSource(leaf, shape, (), std=0.0 if len(shape) == 1 else std)
    if len(found) < about.n_tensors:
        return new
    of_one = shape[1:] if stacked else shape
    for entry in found:
        expected = of_one[::-1] if rule.transform == "transpose" else of_one
        given = entry.shape[::-1] if rule.transform == "transpose" else entry.shape
        if not is_floating(entry.dtype) or entry.dtype.startswith("float8"):
            raise CheckpointError(
                f"{entry.name} of {about.where} is {entry.dtype}: the weights are quantised, and jzero trains floating "
                "ones; take the checkpoint that they were made of."
            )
        if given == of_one:
            continue
        if leaf in names.new:
            return new
        others = lambda sizes: [n for d, n in enumerate(sizes) if d != dim]
        if dim < 0 or others(given) != others(of_one):
            raise CheckpointError(
                f"{entry.name} of {about.where} is {brief(entry.shape, entry.dtype)}; by its config.json it would have "
                f"the shape {expected}."
            )
        return LeafSource(leaf, shape, tuple(found), rule.transform, stacked, given[dim], dim, std)
    return LeafSource(leaf, shape, tuple(found), rule.transform, stacked)


def _refuse_missing(missing: Sequence[LeafSource], where: str, names: Names) -> None:
    if not missing:
        return
    tensors = {rule.stacked: rule.tensor for rule in names.rules}
    tensors |= {rule.leaf: rule.tensor for rule in names.rules}
    listed = [tensors.get(source.name, source.name).replace("{n}", "N") for source in missing]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    raise CheckpointError(f"{where} lacks {', '.join(listed[:_NAMED])}{more}, which its config.json asks for.")
