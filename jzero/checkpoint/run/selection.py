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
        grown: whether the saved leaf is the leading part of the wanted one, whose rest keeps its present values.
    """

    names: tuple[str, ...]
    stacked: bool = False
    index: int | None = None
    n_layers: int = 0
    grown: bool = False


class Match(NamedTuple):
    """What a load will do.

    Attributes:
        sources: where each leaf that is loaded comes from.
        notes: a sentence for each kind of leaves that were asked for and are not loaded wholly.
    """

    sources: dict[str, Source]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """What to load of a checkpoint, and what may differ. By default all leaves are loaded and none may differ.

    Attributes:
        only: globs over paths such as `params/*`, in which `*` also crosses `/`; other leaves stay as they are.
        missing: whether leaves that the checkpoint lacks are refused or keep their present values.
        extra: whether leaves that only the checkpoint has are refused or ignored.
        changed: whether leaves of another shape are refused or keep their present values, such as a new head.
        grow: whether leaves that are longer here are treated as changed or take the saved values as their leading part
            and keep their present ones beyond it, such as an embedding with tokens added.
        never: globs over paths of leaves that are not loaded all the same.
        layers: for unrolled layers that are loaded into scanned ones or the other way: the unrolled path with `*` for
            the layer's number -> the scanned path, such as `{"h/*": "h"}`.
    """

    only: Sequence[str] = ("*",)
    missing: Literal["refuse", "keep"] = "refuse"
    extra: Literal["refuse", "ignore"] = "refuse"
    changed: Literal["refuse", "keep"] = "refuse"
    grow: Literal["refuse", "pad"] = "refuse"
    never: Sequence[str] = ()
    layers: Mapping[str, str] | None = None

    def chooses(self, name: str) -> bool:
        """Whether a leaf is to be loaded."""
        matches = lambda globs: any(fnmatchcase(name, glob) for glob in globs)
        return matches(self.only) and not matches(self.never)


def match(
    checkpoint: object,
    saved: Mapping[str, Leaf],
    wanted: Mapping[str, Leaf],
    selection: Selection,
    *,
    advise: bool = False,
) -> Match:
    """Finds the source of every wanted leaf that is to be loaded.

    Args:
        checkpoint: what to call it in messages.
        saved: its leaves.
        wanted: the state's, with true shapes.
        selection: what to load.
        advise: whether a refusal says which arguments of `engine.load_checkpoint` allow what was found.

    Raises:
        CheckpointError: for everything that does not fit, by path and with shapes, or if nothing is left to load.

    Example:
        >>> saved = {"params/h/0/w": Leaf((3,), "float32"), "params/h/1/w": Leaf((3,), "float32")}
        >>> found = match("c", saved, {"params/h/w": Leaf((2, 3), "float32")}, Selection(layers={"h/*": "h"}))
        >>> found.sources["params/h/w"]
        Source(names=('params/h/0/w', 'params/h/1/w'), stacked=True, index=None, n_layers=0, grown=False)
    """
    wanted = {name: leaf for name, leaf in wanted.items() if selection.chooses(name)}
    sources = _layer_sources(saved, wanted, selection.layers or {})
    found, differing = _divide(saved, wanted, sources, selection)
    used = {part for name in wanted for part in sources.get(name, Source((name,))).names}
    extra = [f"{name} {leaf}" for name, leaf in saved.items() if selection.chooses(name) and name not in used]
    problems = [
        f"{len(names)} {what} ({_some(names)})"
        for names, what, refused in (
            (differing.missing, "of this model's leaves are missing in it", selection.missing == "refuse"),
            (extra, "leaves exist only in it", selection.extra == "refuse"),
            (differing.changed, "differ in shape or dtype", selection.changed == "refuse"),
        )
        if names and refused
    ]
    if problems:
        ways = _ways(differing, extra, selection) if advise else ""
        raise CheckpointError(f"The checkpoint {checkpoint} is of another model: {'; '.join(problems)}.{ways}")
    notes = tuple(
        f"The checkpoint {checkpoint}: {len(names)} {what} ({_some(names)})."
        for names, what in (
            (differing.missing, 'leaves that it lacks keep their present values, as missing="keep" says'),
            (extra, 'leaves that only it has are left out, as extra="ignore" says'),
            (differing.changed, 'leaves of another shape or dtype keep their present values, as changed="keep" says'),
            (differing.grown, 'leaves take its values as their first part and keep theirs beyond, as grow="pad" says'),
        )
        if names
    )
    if not found:
        raise CheckpointError(_nothing_left(checkpoint, saved, selection, notes))
    return Match(found, notes)


class _Differing(NamedTuple):
    """Leaves that are not in the checkpoint as they are wanted, each with what is there and here."""

    missing: list[str]
    changed: list[str]
    grown: list[str]
    could_grow: bool


def _divide(
    saved: Mapping[str, Leaf], wanted: Mapping[str, Leaf], sources: Mapping[str, Source], selection: Selection
) -> tuple[dict[str, Source], _Differing]:
    """The sources of what can be loaded, and what differs."""
    found, missing, changed, grown, could_grow = {}, [], [], [], False
    for name, leaf in wanted.items():
        source = sources.get(name, Source((name,)))
        if any(part not in saved for part in source.names):
            missing.append(f"{name} {leaf}")
            continue
        parts = [saved[part] for part in source.names]
        if all(_fits(part, leaf, source) for part in parts):
            found[name] = source
            continue
        count = f"{len(parts)} layers of " * source.stacked
        sentence = f"{name} is {count}{parts[0]} there and {leaf} here"
        is_part = source == Source((name,)) and _is_first_part(parts[0], leaf)
        could_grow |= is_part
        if is_part and selection.grow == "pad":
            found[name] = source._replace(grown=True)
            grown.append(sentence)
        else:
            changed.append(sentence)
    return found, _Differing(missing, changed, grown, could_grow)


def _is_first_part(part: Leaf, leaf: Leaf) -> bool:
    """Whether a saved leaf has the dimensions of the wanted one, none of them longer and none empty."""
    same_rank = len(part.shape) == len(leaf.shape)
    shorter = same_rank and all(0 < old <= new for old, new in zip(part.shape, leaf.shape, strict=True))
    return shorter and _same_kind(part, leaf)


def _ways(differing: _Differing, extra: Sequence[str], selection: Selection) -> str:
    """How a load of what differs can be asked for."""
    ways = {
        'missing="keep" (this model\'s present values stay)': differing.missing and selection.missing == "refuse",
        'extra="ignore" (what only the checkpoint has is left out)': extra and selection.extra == "refuse",
        'grow="pad" (saved values become the first part of longer leaves, the rest stays)': differing.could_grow
        and differing.changed,
        'changed="keep" (none of the saved values of these leaves)': differing.changed
        and selection.changed == "refuse",
    }
    return f" engine.load_checkpoint can take it with {', '.join(way for way, applies in ways.items() if applies)}."


def _nothing_left(checkpoint: object, saved: Mapping[str, Leaf], selection: Selection, notes: Sequence[str]) -> str:
    """Why there is nothing to load."""
    globs = ", ".join(selection.only)
    if notes:
        return f"Nothing of the checkpoint {checkpoint} would be loaded ({globs}). {' '.join(notes)}"
    return f"The checkpoint {checkpoint} has none of the leaves to load ({globs}); it has {_some(list(saved))}."


def _fits(part: Leaf, leaf: Leaf, source: Source) -> bool:
    shape = part.shape
    if source.stacked:
        shape = (len(source.names), *shape)
    elif source.index is not None:
        shape = shape[1:] if shape[:1] == (source.n_layers,) else shape
    return shape == leaf.shape and _same_kind(part, leaf)


def _same_kind(part: Leaf, leaf: Leaf) -> bool:
    return part.dtype == leaf.dtype or (is_floating(part.dtype) and is_floating(leaf.dtype))


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
    more = f", and {len(names) - _N_LISTED} more" if len(names) > _N_LISTED else ""
    return f"{', '.join(names[:_N_LISTED])}{more}"
