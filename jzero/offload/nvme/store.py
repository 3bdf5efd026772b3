"""The optimizer's state of this process: parameters and moments in files, written, read and updated in place.

"In place" is what a user sees: a step reads one generation of the files and writes the other (see `folder`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from jzero.offload.nvme.disk import Disk, aligned_memory
from jzero.offload.nvme.folder import Folder, Rest
from jzero.offload.nvme.groups import Group, Segment, Shard, cut
from jzero.offload.nvme.kinds import Kind, compile_update, host_device
from jzero.offload.nvme.pipeline import run_stations

Taken = Callable[[int, np.ndarray], None]


@dataclass(frozen=True)
class Layout:
    """What lies where.

    Attributes:
        shards: of all parameters in the files, those of this process.
        kinds: of parameters.
        groups: what is read and written as a whole.
    """

    shards: tuple[Shard, ...]
    kinds: tuple[Kind, ...]
    groups: tuple[Group, ...]

    @property
    def n_bytes(self) -> int:
        """What one generation takes."""
        return sum(group.n_bytes for group in self.groups)


def lay_out(shards: Sequence[Shard], kinds: Sequence[Kind], group_elements: int) -> Layout:
    """Lays the shards out in groups of at most `group_elements`."""
    return Layout(tuple(shards), tuple(kinds), tuple(cut(shards, [kind.dtypes for kind in kinds], group_elements)))


class _Place(NamedTuple):
    """A stretch of one array of a group: where in the group, of which shard, the number of the array and its dtype."""

    here: slice
    segment: Segment
    array: int
    dtype: np.dtype


class _Buffer:
    """Memory for one group under way: its state as it lies in the file, and its gradients."""

    def __init__(self, layout: Layout, grad_dtype: DTypeLike):
        self._arrives = [kind.arrives(grad_dtype) for kind in layout.kinds]
        self.state = aligned_memory(max((group.n_bytes for group in layout.groups), default=0))
        self._grads = aligned_memory(max((self._grads_bytes(group) for group in layout.groups), default=0))

    def grads(self, group: Group) -> np.ndarray:
        """The place of its gradients."""
        return self._grads[: self._grads_bytes(group)].view(self._arrives[group.kind])

    def _grads_bytes(self, group: Group) -> int:
        return group.size * self._arrives[group.kind].itemsize


class Store:
    """State in files.

    Args:
        layout: what lies where.
        folder: the files.
        disk: how they are read and written.
        n_buffers: groups under way at once (DeepSpeed key `offload_optimizer.buffer_count`).
        scalars: abstract scalars of the update, by their number among its operands.
        grad_dtype: of real gradients; complex ones come as they are.
        divides: whether gradients are divided before the update.
    """

    def __init__(
        self,
        layout: Layout,
        folder: Folder,
        disk: Disk,
        n_buffers: int,
        scalars: Mapping[int, jax.ShapeDtypeStruct],
        *,
        grad_dtype: DTypeLike,
        divides: bool,
    ):
        self.layout, self.folder = layout, folder
        self._disk = disk
        self._updates = {
            (kind, size): compile_update(
                layout.kinds[kind], size, grad_dtype, [scalars[i] for i in layout.kinds[kind].scalars], divides=divides
            )
            for kind, size in {(group.kind, group.size) for group in layout.groups}
        }
        self._buffers = [_Buffer(layout, grad_dtype) for _ in range(max(1, min(n_buffers, len(layout.groups))))]

    def write(self, values: Mapping[tuple[int, int], np.ndarray]) -> None:
        """Writes arrays of the present state.

        Args:
            values: flat arrays by shard number and array number, all arrays of each shard.
        """
        written = {number for number, _ in values}
        for group in self._groups_of(written):
            memory = self._buffers[0].state[: group.n_bytes]
            if not written.issuperset(segment.shard for segment in group.segments):
                self._disk.read(self.folder.file, memory, group.offset)
            for here, segment, array, dtype in self._places(group, written):
                part = values[segment.shard, array][segment.start : segment.stop]
                group.view(memory, array, dtype)[here] = part
            self._disk.write(self.folder.file, memory, group.offset)

    def read(self, numbers: Collection[int]) -> dict[tuple[int, int], np.ndarray]:
        """Reads arrays of the present state.

        Args:
            numbers: of the shards.

        Returns:
            Flat arrays by shard number and array number.
        """
        shards = self.layout.shards
        values = {
            (number, array): np.empty(shards[number].size, dtype)
            for number in numbers
            for array, dtype in enumerate(self.layout.kinds[shards[number].kind].dtypes)
        }
        for group in self._groups_of(set(numbers)):
            memory = self._buffers[0].state[: group.n_bytes]
            self._disk.read(self.folder.file, memory, group.offset)
            for here, segment, array, dtype in self._places(group, set(numbers)):
                values[segment.shard, array][segment.start : segment.stop] = group.view(memory, array, dtype)[here]
        return values

    def update(
        self,
        step: int,
        rest: tuple[Rest, Rest],
        gradient: Callable[[int], np.ndarray],
        scalars: Mapping[int, np.ndarray],
        divisor: np.ndarray | None,
        taken: Taken,
    ) -> None:
        """Takes one step, wholly or not at all.

        Args:
            step: training steps taken before it.
            rest: what lasts on the devices before and after it.
            gradient: the flat gradient of a shard; asked once for every group that has a part of it.
            scalars: of the update, by their number among its operands.
            divisor: f32[] or None, see `compile_update`.
            taken: called with the number of a shard and its new parameter in the compute dtype, flat, once it is there.

        Raises:
            OffloadError: the disk fails; what is on it is the state before the step.
        """
        source, target = self.folder.file, self.folder.begin(step, rest[0])
        at_host = host_device()
        divisor_there = None if divisor is None else jax.device_put(divisor, at_host)
        scalars_there = {i: jax.device_put(x, at_host) for i, x in scalars.items()}
        fresh: dict[int, np.ndarray] = {}
        left = {number: shard.size for number, shard in enumerate(self.layout.shards)}

        def read(group: Group, buffer: _Buffer) -> None:
            self._disk.read(source, buffer.state[: group.n_bytes], group.offset)
            filled, grads = 0, buffer.grads(group)
            for segment in group.segments:
                part = gradient(segment.shard)[segment.start : segment.stop]
                grads[filled : filled + len(part)] = part
                filled += len(part)

        def update(group: Group, buffer: _Buffer) -> None:
            kind = self.layout.kinds[group.kind]
            olds = [group.view(buffer.state, i, dtype) for i, dtype in enumerate(kind.dtypes)]
            # The arrays are the buffer's memory itself, which must not change before the results are there.
            news, computes = jax.block_until_ready(
                self._updates[group.kind, group.size](
                    jax.device_put(buffer.grads(group), at_host),
                    jax.device_put(olds, at_host),
                    [scalars_there[i] for i in kind.scalars],
                    divisor_there,
                )
            )
            for old, new in zip(olds, news, strict=True):
                np.copyto(old, np.asarray(new))
            filled, computes = 0, np.asarray(computes)
            for segment in group.segments:
                n, shard = segment.stop - segment.start, self.layout.shards[segment.shard]
                if segment.shard not in fresh:
                    fresh[segment.shard] = np.empty(shard.size, kind.computes)
                fresh[segment.shard][segment.start : segment.stop] = computes[filled : filled + n]
                filled += n
                left[segment.shard] -= n
                if not left[segment.shard]:
                    taken(segment.shard, fresh.pop(segment.shard))

        def write(group: Group, buffer: _Buffer) -> None:
            self._disk.write(target, buffer.state[: group.n_bytes], group.offset)

        run_stations(self.layout.groups, self._buffers, (read, update, write))
        self.folder.commit(step + 1, rest[1])

    def _groups_of(self, numbers: Collection[int]) -> list[Group]:
        return [g for g in self.layout.groups if any(segment.shard in numbers for segment in g.segments)]

    def _places(self, group: Group, numbers: Collection[int]) -> Iterator[_Place]:
        """Where the arrays of shards lie in a group."""
        filled = 0
        for segment in group.segments:
            n = segment.stop - segment.start
            if segment.shard in numbers:
                for array, dtype in enumerate(self.layout.kinds[group.kind].dtypes):
                    yield _Place(slice(filled, filled + n), segment, array, dtype)
            filled += n
