"""Between sharded arrays and flat vectors in files: each process sees to the shards of its own devices, once each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jzero.base.types import Device
from jzero.sharding.placement import Placement


class Piece(NamedTuple):
    """One shard of one array.

    Attributes:
        leaf: the array's number.
        devices: those of this process that hold it; several where the array is replicated.
    """

    leaf: int
    devices: tuple[Device, ...]


class Pieces:
    """The shards of some arrays, numbered.

    Args:
        placements: how the arrays lie.
        mesh: over these devices.

    Attributes:
        all: the pieces, in the order of their arrays.
        shardings: of the arrays.
    """

    def __init__(self, placements: Sequence[Placement], mesh: Mesh):
        self.shardings = [NamedSharding(mesh, placement.spec) for placement in placements]
        self._shapes = [placement.padded_shape for placement in placements]
        self.all = [
            Piece(leaf, devices)
            for leaf, (shape, sharding) in enumerate(zip(self._shapes, self.shardings, strict=True))
            for devices in _holders(shape, sharding)
        ]
        self._numbers: list[list[int]] = [[] for _ in placements]
        for number, piece in enumerate(self.all):
            self._numbers[piece.leaf].append(number)

    def size(self, number: int) -> int:
        """The elements of a piece."""
        leaf = self.all[number].leaf
        return math.prod(self.shardings[leaf].shard_shape(self._shapes[leaf]))

    def of(self, leaves: Sequence[int]) -> list[int]:
        """The numbers of the pieces of some arrays."""
        return [number for leaf in leaves for number in self._numbers[leaf]]

    def take(self, leaf: int, array: jax.Array) -> dict[int, np.ndarray]:
        """The pieces of an array, flat, by their number; views of its memory where that is the host's."""
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        return {i: np.asarray(shards[self.all[i].devices[0]]).reshape(-1) for i in self._numbers[leaf]}

    def put(self, number: int, values: np.ndarray, memory_kind: str | None = None) -> dict[Device, jax.Array]:
        """Brings a flat piece to its devices, into one of their memories."""
        leaf = self.all[number].leaf
        shaped = values.reshape(self.shardings[leaf].shard_shape(self._shapes[leaf]))
        return {
            device: jax.device_put(shaped, jax.sharding.SingleDeviceSharding(device, memory_kind=memory_kind))
            for device in self.all[number].devices
        }

    def join(self, leaf: int, parts: Mapping[Device, jax.Array]) -> jax.Array:
        """The array of the pieces that `put` brought to all devices of this process."""
        kind = cast(str, next(iter(parts.values())).sharding.memory_kind)
        sharding = self.shardings[leaf].with_memory_kind(kind)
        return jax.make_array_from_single_device_arrays(self._shapes[leaf], sharding, list(parts.values()))

    def chunks(self, most: int, arrays: Callable[[int], int]) -> list[list[int]]:
        """Groups the arrays so that few are in memory at once.

        Args:
            most: elements of this process in one chunk, unless a single array has more.
            arrays: how many arrays of the same size belong to each.
        """
        chunks: list[list[int]] = []
        room = 0
        for leaf, numbers in enumerate(self._numbers):
            n = arrays(leaf) * sum(self.size(number) for number in numbers)
            if n > room or not chunks:
                chunks.append([])
                room = most
            chunks[-1].append(leaf)
            room -= n
        return chunks


def _holders(shape: tuple[int, ...], sharding: NamedSharding) -> list[tuple[Device, ...]]:
    """The devices of each shard in this process, in the order of the shards."""
    holders: dict[tuple[int, ...], list[Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        holders.setdefault(tuple(part.start or 0 for part in index or ()), []).append(device)
    return [tuple(holders[start]) for start in sorted(holders)]
