"""Sub-groups: how the shards of many parameters become a few long vectors, and where each lies in a file.

An elementwise update does not care where an element comes from. So all parameters with the same update are seen as one
vector, cut into pieces of `sub_group_size` elements; a piece is read, updated and written as a whole, and one compiled
function serves all of the same length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jzero.offload.nvme.disk import aligned


@dataclass(frozen=True)
class Shard:
    """A part of a parameter that some device of this process holds.

    Attributes:
        size: its elements.
        kind: parameters of one kind are updated alike.
    """

    size: int
    kind: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a flattened shard: elements `start` to `stop` of shard number `shard`."""

    shard: int
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """Some segments, one behind the other, and where their state lies.

    Attributes:
        kind: of its parameters.
        size: its elements.
        offset: where it begins in the file, bytes.
        sections: for each array of its state, where it begins in the group, bytes.
        n_bytes: what the group takes.
        segments: what it consists of.
    """

    kind: int
    size: int
    offset: int
    sections: tuple[int, ...]
    n_bytes: int
    segments: tuple[Segment, ...]

    def view(self, memory: np.ndarray, array: int, dtype: np.dtype) -> np.ndarray:
        """One array of the group's state, `dtype[size]`, as a view of the memory that the group was read into."""
        start = self.sections[array]
        return memory[start : start + self.size * dtype.itemsize].view(dtype)


def cut(shards: Sequence[Shard], dtypes: Sequence[Sequence[np.dtype]], group_elements: int) -> list[Group]:
    """Cuts shards into groups.

    Args:
        shards: all of them.
        dtypes: for each kind, those of the arrays of its state.
        group_elements: the most elements of a group.

    Returns:
        The groups in the order of their offsets, which are multiples of what direct I/O needs.

    Example:
        >>> shards = [Shard(5, kind=0), Shard(4, kind=0)]
        >>> groups = cut(shards, [[np.dtype("float32")] * 3], 6)
        >>> [(g.size, g.offset, g.segments) for g in groups]  # doctest: +NORMALIZE_WHITESPACE
        [(6, 0, (Segment(shard=0, start=0, stop=5), Segment(shard=1, start=0, stop=1))),
         (3, 12288, (Segment(shard=1, start=1, stop=4),))]
    """
    groups: list[Group] = []
    for kind, arrays in enumerate(dtypes):
        for segments in _stretches(shards, kind, group_elements):
            size = sum(segment.stop - segment.start for segment in segments)
            sections = np.cumsum([0, *[aligned(size * dtype.itemsize) for dtype in arrays]]).tolist()
            offset = groups[-1].offset + groups[-1].n_bytes if groups else 0
            groups.append(Group(kind, size, offset, tuple(sections[:-1]), sections[-1], tuple(segments)))
    return groups


def _stretches(shards: Sequence[Shard], kind: int, group_elements: int) -> list[list[Segment]]:
    """The shards of one kind, one behind the other, cut wherever a group is full."""
    stretches: list[list[Segment]] = []
    room = 0
    for number, shard in enumerate(shards):
        start = 0
        while shard.kind == kind and start < shard.size:
            if not room:
                stretches.append([])
                room = group_elements
            stop = min(shard.size, start + room)
            stretches[-1].append(Segment(number, start, stop))
            room -= stop - start
            start = stop
    return stretches
