"""Which leaves of a checkpoint make which leaves of a state: strict unless told otherwise, and told by names alone.

Nothing is read here. The result says for each wanted leaf where it comes from: from one saved leaf, from several that
are stacked (unrolled layers into scanned ones), or from a slice of one (the other way).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from jzero.checkpoint.format.header import Leaf
from jzero.checkpoint.format.leaves import is_floating
from jzero.errors import CheckpointError

_N_LISTED = 8


class Source(NamedTuple):
    """Where a leaf comes from: saved leaves to stack along a new first dimension, or one of them.

    Attributes:
        names: the saved leaves; more than one are stacked.
        stacked: whether even a single one is stacked.
        index: which slice along the first dimension of the one saved leaf; None for all of it.
        n_layers: how many slices of it are wanted, which must be all.
    """

    names: tuple[str, ...]
    stacked: bool = False
    index: int | None = None
    n_layers: int = 0


@dataclass(frozen=True)
class Selection:
    """What to load of a checkpoint, and what may differ. By default all leaves are loaded and none may differ.

    Attributes:
        only: globs over paths such as `params/*`, in which `*` also crosses `/`; other leaves stay as they are.
        missing: whether leaves that the checkpoint lacks are refused or keep their present values.
        extra: whether leaves that only the checkpoint has are refused or ignored.
        changed: whether leaves of another shape are refused or keep their present values, such as a new head.
        never: globs over paths of leaves that are not loaded all the same.
        layers: for unrolled layers that are loaded into scanned ones or the other way: the unrolled path with `*` for
            the layer's number -> the scanned path, such as `{"h/*": "h"}`.
    """

    only: Sequence[str] = ("*",)
    missing: Literal["refuse", "keep"] = "refuse"
    extra: Literal["refuse", "ignore"] = "refuse"
    changed: Literal["refuse", "keep"] = "refuse"
    never: Sequence[str] = ()
    layers: Mapping[str, str] | None = None

    def chooses(self, name: str) -> bool:
        """Whether a leaf is to be loaded."""
        matches = lambda globs: any(fnmatchcase(name, glob) for glob in globs)
        return matches(self.only) and not matches(self.never)


def match(
    checkpoint: object, saved: Mapping[str, Leaf], wanted: Mapping[str, Leaf], selection: Selection
) -> dict[str, Source]:
    """Finds the source of every wanted leaf that is to be loaded.

    Args:
        checkpoint: what to call it in messages.
        saved: its leaves.
        wanted: the state's, with true shapes.
        selection: what to load.

    Raises:
        CheckpointError: for everything that does not fit, by path and with shapes, or if nothing is left to load.

    Example:
        >>> saved = {"params/h/0/w": Leaf((3,), "float32"), "params/h/1/w": Leaf((3,), "float32")}
        >>> match("c", saved, {"params/h/w": Leaf((2, 3), "float32")}, Selection(layers={"h/*": "h"}))
        {'params/h/w': Source(names=('params/h/0/w', 'params/h/1/w'), stacked=True, index=None, n_layers=0)}
    """
    wanted = {name: leaf for name, leaf in wanted.items() if selection.chooses(name)}
    sources, found, missing, changed = _layer_sources(saved, wanted, selection.layers or {}), {}, [], []
    for name, leaf in wanted.items():
        source = sources.get(name, Source((name,)))
        if any(part not in saved for part in source.names):
            missing.append(f"{name} {leaf}")
            continue
        parts = [saved[part] for part in source.names]
        if all(_fits(part, leaf, source) for part in parts):
            found[name] = source
        else:
            count = f"{len(parts)} layers of " * source.stacked
            changed.append(f"{name} is {count}{parts[0]} there and {leaf} here")
    used = {part for name in wanted for part in sources.get(name, Source((name,))).names}
    extra = [f"{name} {leaf}" for name, leaf in saved.items() if selection.chooses(name) and name not in used]
    problems = [
        f"{len(names)} {what} ({_some(names)})"
        for names, what, refused in (
            (missing, "of this model's leaves are missing in it", selection.missing == "refuse"),
            (extra, "leaves exist only in it", selection.extra == "refuse"),
            (changed, "differ in shape or dtype", selection.changed == "refuse"),
        )
        if names and refused
    ]
    if problems:
        raise CheckpointError(f"The checkpoint {checkpoint} is of another model: {'; '.join(problems)}.")
    if not found:
        raise CheckpointError(
            f"The checkpoint {checkpoint} has none of the leaves to load ({', '.join(selection.only)}); "
            f"it has {_some(list(saved))}."
        )
    return found


def _fits(part: Leaf, leaf: Leaf, source: Source) -> bool:
    shape = part.shape
    if source.stacked:
        shape = (len(source.names), *shape)
    elif source.index is not None:
        shape = shape[1:] if shape[:1] == (source.n_layers,) else shape
    same_kind = part.dtype == leaf.dtype or (is_floating(part.dtype) and is_floating(leaf.dtype))
    return shape == leaf.shape and same_kind


def _layer_sources(
    saved: Mapping[str, Leaf], wanted: Mapping[str, Leaf], layers: Mapping[str, str]
) -> dict[str, Source]:
    """Sources of the leaves that have another layer form in the checkpoint; those of the same form need none."""
    sources = {}
    for unrolled, scanned in layers.items():
        if unrolled.count("*") != 1:
            raise CheckpointError(
                f"layers: {unrolled!r} must have one `*`, for the number of the layer, as in {{'h/*': 'h'}}."
            )
        before, after = map(re.escape, unrolled.split("*"))
        numbered = re.compile(f"(?P<head>(?:.*/)?){before}(?P<layer>[0-9]+){after}(?P<rest>/.*)")
        unrolled_there = _by_scanned_name(saved, numbered, scanned)
        for name in wanted.keys() & unrolled_there.keys() - saved.keys():
            sources[name] = Source(tuple(unrolled_there[name]), stacked=True)
        for whole, names in _by_scanned_name(wanted, numbered, scanned).items():
            if whole in saved:
                sources |= {name: Source((whole,), index=i, n_layers=len(names)) for i, name in enumerate(names)}
    return sources


def _by_scanned_name(names: Iterable[str], numbered: re.Pattern[str], scanned: str) -> dict[str, list[str]]:
    """The leaves of unrolled layers, in the order of the layers, under the name they have when scanned."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if at := numbered.fullmatch(name):
            found.setdefault(f"{at['head']}{scanned}{at['rest']}", {})[int(at["layer"])] = name
    return {whole: [layers[i] for i in sorted(layers)] for whole, layers in found.items()}


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return f"{', '.join(names[:_N_LISTED])}{', ...' if len(names) > _N_LISTED else ''}"
