"""Who talks to whom: the device groups of a collective, in every notation XLA prints, and the mesh axes they follow."""

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jzero.plan.compiled.hlo import Instruction


@dataclasses.dataclass(frozen=True)
class Groups:
    """The devices of one collective.

    Attributes:
        size: devices in the largest group.
        axes: mesh axes longer than 1 that the groups run along; None where they follow no mesh that is known.
        devices: the groups, as positions in the program's order of devices; None where the notation does not tell.
    """

    size: int
    axes: tuple[str, ...] | None
    devices: tuple[tuple[int, ...], ...] | None = dataclasses.field(default=None, compare=False)

    def per_node(self, nodes: Sequence[int]) -> int:
        """How many devices of a group share a node, in the node that has the fewest of them.

        Args:
            nodes: the node of each device, in the program's order.

        Returns:
            `size` where no group leaves its node; 1, the worst case, where the devices are not known.

        Example:
            >>> Groups(4, None, ((0, 1, 2, 3),)).per_node([0, 0, 1, 1])
            2
        """
        if len(set(nodes)) <= 1:
            return self.size
        if self.devices is None:
            return 1
        counts = [Counter(nodes[device] for device in group) for group in self.devices]
        return min((min(count.values()) for count in counts if len(count) > 1), default=self.size)


def read_groups(line: Instruction, n_partitions: int, mesh_shape: Mapping[str, int] | None) -> Groups:
    """Reads `replica_groups` (lists, iota, mesh axes, or empty for all devices) or `source_target_pairs`.

    Args:
        line: the collective.
        n_partitions: devices the program runs on, which an empty list of groups stands for.
        mesh_shape: axis name -> size of the mesh whose flat order numbers the partitions, to name the axes by.

    Returns:
        Group size and axes.

    Raises:
        ValueError: a notation that is not known.
    """
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})?\}", line.attributes)
    if pairs:
        return _named(_connected(_lists(pairs[1] or "")), mesh_shape)
    on_mesh = re.search(r"replica_groups=mesh\[(.*?(?:device_ids=\(.*?)?)\s*\{('.*?)\}", line.attributes)
    if on_mesh:
        return _on_mesh_axes(on_mesh[1], on_mesh[2], mesh_shape)
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line.attributes)
    if iota:
        shape, source, order = (_numbers(part or "") for part in iota.groups())
        devices = np.arange(math.prod(source)).reshape(source)
        devices = devices.transpose(order) if order else devices
        return _named(devices.reshape(shape[0], -1).tolist(), mesh_shape)
    lists = re.search(r"replica_groups=\{(\{.*?\})?\}", line.attributes)
    if lists is None:
        raise ValueError(f"The device groups of {line.name} are in no known notation: {line.attributes}")
    return _named(_lists(lists[1] or "") or [list(range(n_partitions))], mesh_shape)


def _on_mesh_axes(mesh_text: str, axes_text: str, mesh_shape: Mapping[str, int] | None) -> Groups:
    """`'replica'=2,'shard'=4` and `'shard'`, or `'shard':(2)2` for a part of an axis.

    The printed mesh is the compiler's own and may differ from the user's in names and shape.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh_text)}
    parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes_text)
    axes = tuple(name for name, _ in parts if sizes[name] > 1)
    if "device_ids" in mesh_text or any(part for _, part in parts):
        return Groups(math.prod(int(part or sizes[name]) for name, part in parts), None)
    if mesh_shape is None:
        return Groups(math.prod(sizes[name] for name in axes), axes, _frozen(_along(axes, sizes)))
    return _named([sorted(group) for group in _along(axes, sizes)], mesh_shape)


def _named(groups: list[list[int]], mesh_shape: Mapping[str, int] | None) -> Groups:
    size = max(map(len, groups), default=1)
    wanted = {frozenset(group) for group in groups}
    long_axes = [name for name, length in (mesh_shape or {}).items() if length > 1]
    for n_axes in range(len(long_axes) + 1):
        for axes in itertools.combinations(long_axes, n_axes):
            if mesh_shape is not None and _along(axes, mesh_shape) == wanted:
                return Groups(size, axes, _frozen(groups))
    return Groups(size, None, _frozen(groups))


def _along(axes: tuple[str, ...], mesh_shape: Mapping[str, int]) -> set[frozenset[int]]:
    """The groups of devices that differ only in their position on `axes`."""
    sizes = tuple(mesh_shape.values())
    moved = [position for position, name in enumerate(mesh_shape) if name in axes]
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    devices = np.moveaxis(devices, moved, range(-len(moved), 0))
    return {frozenset(group) for group in devices.reshape(-1, math.prod(sizes[i] for i in moved)).tolist()}


def _frozen(groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group) for group in groups)


def _connected(pairs: list[list[int]]) -> list[list[int]]:
    """Devices that reach each other through source-target pairs."""
    groups: list[set[int]] = []
    for pair in pairs:
        touching = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)]
        groups.append(set(pair).union(*touching))
    return [sorted(group) for group in groups]


def _lists(text: str) -> list[list[int]]:
    return [_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", text)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
