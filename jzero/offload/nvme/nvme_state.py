"""An engine's state with the optimizer in files: one state for the user, divided between devices and disk.

On the devices last the parameters in the dtype that computes, small parameters with their moments, and the counters.
The fp32 parameters and moments of the others are in files, each process's own.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jzero.base.types import Batch, Device, Params, PyTree
from jzero.base.units import format_bytes
from jzero.config.schema.sections import Aio
from jzero.config.schema.zero import OffloadOptimizer
from jzero.errors import OffloadError
from jzero.jaxpr import evaluate, parts, trace
from jzero.offload.host.update import Plan
from jzero.offload.host_budget import free_memory
from jzero.offload.interface import OptimizerLayout, Run, StateLayout
from jzero.offload.nvme.disk import Disk
from jzero.offload.nvme.groups import Shard
from jzero.offload.nvme.kinds import sort_kinds
from jzero.offload.nvme.partition import StatePartition
from jzero.offload.nvme.pieces import Pieces
from jzero.offload.nvme.places import check_alone, newest_common, open_folder, raise_together
from jzero.offload.nvme.store import Store, lay_out
from jzero.optim.apply import widened
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.trees import split

GROUP_ELEMENTS = 2**21
"""The most elements that are updated at once, whatever `sub_group_size` allows: what a processor's cache likes best."""

CHUNK_ELEMENTS = 2**27
"""Elements of parameters and moments that are in memory at once while a state is made or read."""


class InFiles(NamedTuple):
    """What is in files, and in which.

    Attributes:
        fixed: the parameters and their optimizer.
        update_plan: the update, taken apart; its leaves are the parameters in files.
        partition: of the state, between devices and files.
        files: the section `zero_optimization.offload_optimizer`.
        aio: the section `aio`.
        sub_group: the key `zero_optimization.sub_group_size`.
        at_use: whether the parameters that compute are in host memory.
    """

    fixed: OptimizerLayout
    update_plan: Plan
    partition: StatePartition
    files: OffloadOptimizer
    aio: Aio
    sub_group: int | None
    at_use: bool


class NvmeState:
    """The part of an engine's state that is in files, and the step that passes it through memory.

    Args:
        in_files: what is in files, and which.
        run: the compiled functions.
        layout: where the arrays of a state lie.

    Raises:
        ConfigError: the optimizer needs whole parameters, or the disk cannot be used.
    """

    def __init__(self, in_files: InFiles, run: Run, layout: StateLayout):
        fixed, files, aio, partition = in_files.fixed, in_files.files, in_files.aio, in_files.partition
        self._run, self._layout, self._fixed, self._partition = run, layout, fixed, partition
        trained, _ = split(layout.whole.params, fixed.trainable)
        loss = jax.ShapeDtypeStruct((), np.float32)
        operands = jax.tree.leaves([jax.eval_shape(widened, trained), layout.whole.opt_state, trained, loss])
        kinds, kind_of = sort_kinds(in_files.update_plan, operands, partition.casts)
        self._pieces = Pieces(partition.placements, fixed.mesh)
        shards = [Shard(self._pieces.size(i), kind_of[piece.leaf]) for i, piece in enumerate(self._pieces.all)]
        sub_group = in_files.sub_group or GROUP_ELEMENTS
        on_disk = lay_out(shards, kinds, min(GROUP_ELEMENTS, sub_group))
        self._folder = open_folder(files.nvme_path, on_disk.n_bytes, self._description(sub_group))
        try:
            self._store = Store(
                on_disk,
                self._folder,
                Disk(aio.block_size, aio.queue_depth * aio.intra_op_parallelism),
                files.buffer_count,
                {i: operands[i] for kind in kinds for i in kind.scalars},
                grad_dtype=np.float32,
                divides=bool(fixed.max_norm) or in_files.at_use,
            )
        except BaseException:
            self._folder.close()  # nobody else holds it, and another try must find it free
            raise
        self._made = False
        self._memory_kind = PINNED_HOST if in_files.at_use else None

    def init(self, seed: np.uint32, params: Params = None) -> PyTree:
        """Makes a new state; what an earlier run has left stays until the first step, see `recover`.

        Args:
            seed: of the initialisation.
            params: initial parameters in place of the model's own, true shapes.

        Returns:
            What lasts on the devices.
        """
        given = () if params is None else (params,)
        part_of = parts(trace(self._run.whole_init, seed, *given)[0])
        operands = [seed, *jax.tree.leaves(given)]

        def made(leaves: Sequence[int]) -> dict[int, jax.Array]:
            numbers = [i for leaf in leaves for i in self._partition.arrays[leaf]]
            part, reads = part_of(numbers)
            shardings = [self._pieces.shardings[leaf] for leaf in leaves for _ in self._partition.arrays[leaf]]
            make = jax.jit(lambda *xs: evaluate(part, xs), out_shardings=shardings)
            return dict(zip(numbers, make(*[operands[i] for i in reads]), strict=True))

        try:
            self._write(made)
            state = self._run.init(seed, *given)
        except BaseException:
            if not self._made:  # there is no engine then that could be asked to let the folder go
                self._folder.close()
            raise
        self._made = True
        return state

    def init_over(self, seed: np.uint32, params: Params) -> PyTree:
        """See `init`; the files need the parameters until all are written."""
        return self.init(seed, params)

    def step(self, state: PyTree, batch: Batch) -> tuple[PyTree, dict[str, jax.Array]]:
        """Takes one training step.

        Args:
            state: what lasts on the devices.
            batch: as the program takes it.

        Returns:
            What lasts on the devices, and the metrics.

        Raises:
            OffloadError: the disk fails. The step has not been taken then, neither here nor there.
        """
        after, metrics, deferred = self._run.program(state, batch)
        if not deferred.finite:
            leaves = self._partition.treedef.flatten_up_to(state)
            return self._partition.fill(after, {ids[-1]: leaves[ids[-1]] for ids in self._partition.arrays}), metrics
        left: dict[int, dict[Device, jax.Array]] = {
            leaf: {shard.device: shard.data for shard in grad.addressable_shards}
            for leaf, grad in enumerate(deferred.grads)
        }
        scalars = {i: np.asarray(x) for i, x in deferred.scalars.items()}
        divisor = None if deferred.divisor is None else np.asarray(deferred.divisor)
        del deferred  # each gradient goes when it has been used
        parts: list[dict[Device, jax.Array]] = [{} for _ in left]

        def gradient(number: int) -> np.ndarray:
            leaf, devices = self._pieces.all[number]
            return np.asarray(left[leaf][devices[0]]).reshape(-1)

        def taken(number: int, param: np.ndarray) -> None:
            leaf, devices = self._pieces.all[number]
            for device in devices:
                del left[leaf][device]
            parts[leaf] |= self._pieces.put(number, param, self._memory_kind)

        rests = (lambda: self._rest(state), lambda: self._rest(after))
        self._store.update(int(state.step), rests, gradient, scalars, divisor, taken)
        return self._partition.fill(after, self._params(parts)), metrics

    def whole(self, state: PyTree) -> PyTree:
        """The state as it would be without files: what is in them comes to the memory of the host, all of it.

        Raises:
            OffloadError: it does not fit there, or the disk fails.
        """
        needed = self._layout.budget.in_files * len(self._fixed.mesh.local_devices)
        if (free := free_memory()) is not None and needed > free:
            raise OffloadError(
                f"the whole state takes {format_bytes(needed)} of host memory while it is saved, loaded or shown, and "
                f"{format_bytes(free)} are free; use more hosts."
            )
        values: dict[int, jax.Array] = {}
        for leaves in self._chunks():
            read = self._store.read(self._pieces.of(leaves))
            for leaf in leaves:
                for array, number in enumerate(self._partition.arrays[leaf]):
                    parts: dict[Device, jax.Array] = {}
                    for piece in self._pieces.of([leaf]):
                        parts |= self._pieces.put(piece, read[piece, array], PINNED_HOST)
                    values[number] = self._pieces.join(leaf, parts)
        return self._partition.fill(state, values)

    def replace(self, whole: PyTree) -> PyTree:
        """Puts another state, as `whole` returns it, in the place of the present one; returns what lasts on devices."""
        leaves = jax.tree.leaves(whole)
        self._write(lambda chunk: {i: leaves[i] for leaf in chunk for i in self._partition.arrays[leaf]})
        return self._on_devices(whole)

    def recover(self, state: PyTree) -> PyTree:
        """Takes up the newest state that an earlier run of the same model has left in the files.

        Args:
            state: the present one: frozen parameters stay as they are.

        Returns:
            What lasts on the devices.

        Raises:
            OffloadError: there is none.
        """
        step = newest_common(set(self._folder.steps().values()))
        if step is None:
            lost = f" ({'; '.join(self._folder.lost)})" if self._folder.lost else ""
            raise OffloadError(
                f"{self._folder.path} holds no state of an earlier run of this model on these devices{lost}; "
                "load a checkpoint instead."
            )
        recovered, error = None, None
        recorded = self._folder.adopt(step)
        try:
            check_alone(self._folder)
            recovered = self._recovered(state, recorded)
        except OffloadError as failure:
            error = failure
        except (KeyError, ValueError) as failure:
            error = OffloadError(f"{self._folder.path} is damaged: its record lacks a part of the state ({failure}).")
        try:
            raise_together(error)
        except BaseException:
            self._folder.disown()
            raise
        return recovered

    def _recovered(self, state: PyTree, recorded: Mapping[str, np.ndarray]) -> PyTree:
        def rest(number: int, like: jax.Array) -> jax.Array:
            part = lambda index: recorded[_part_name(number, index)].view(like.dtype)
            return jax.make_array_from_callback(like.shape, like.sharding, part)

        leaves = self._partition.treedef.flatten_up_to(state)
        state = self._partition.fill(state, {i: rest(i, leaves[i]) for i in self._recorded(state)})
        return self._on_devices(state)

    def _write(self, values: Callable[[Sequence[int]], Mapping[int, jax.Array]]) -> None:
        """Writes a state: `values` gives, for some parameters, arrays by number."""
        self._folder.replace()
        for leaves in self._chunks():
            arrays, flat = values(leaves), {}
            for leaf in leaves:
                for array, number in enumerate(self._partition.arrays[leaf]):
                    pieces = self._pieces.take(leaf, arrays[number])
                    flat |= {(piece, array): data for piece, data in pieces.items()}
            self._store.write(flat)

    def _on_devices(self, state: PyTree) -> PyTree:
        """A state without moments in files, and with computing parameters that are made from the files."""
        parts: list[dict[Device, jax.Array]] = [{} for _ in self._partition.arrays]
        for leaves in self._chunks():
            read = self._store.read(self._pieces.of(leaves))
            for piece in self._pieces.of(leaves):
                leaf = self._pieces.all[piece].leaf
                param = read[piece, len(self._partition.arrays[leaf]) - 1]
                for dtype in self._partition.casts[leaf]:
                    param = param.astype(dtype)
                parts[leaf] |= self._pieces.put(piece, param, self._memory_kind)
        moments = {i: None for ids in self._partition.arrays for i in ids[:-1]}
        return self._partition.fill(state, moments | self._params(parts))

    def _params(self, parts: Sequence[Mapping[Device, jax.Array]]) -> dict[int, jax.Array]:
        joined = [self._pieces.join(leaf, shards) for leaf, shards in enumerate(parts)]
        return {ids[-1]: param for ids, param in zip(self._partition.arrays, joined, strict=True)}

    def _recorded(self, state: PyTree) -> list[int]:
        """The numbers of the leaves that a record holds: all on the devices that steps change."""
        leaves = self._partition.treedef.flatten_up_to(state)
        trainable = [*jax.tree.leaves(self._fixed.trainable), *[True] * len(leaves)]
        in_files = {i for ids in self._partition.arrays for i in ids}
        return [i for i, x in enumerate(leaves) if x is not None and trainable[i] and i not in in_files]

    def _rest(self, state: PyTree) -> dict[str, np.ndarray]:
        leaves = self._partition.treedef.flatten_up_to(state)
        return {
            _part_name(i, shard.index): np.asarray(shard.data)
            for i in self._recorded(state)
            for shard in leaves[i].addressable_shards
        }

    def _chunks(self) -> list[list[int]]:
        return self._pieces.chunks(CHUNK_ELEMENTS, lambda leaf: len(self._partition.arrays[leaf]))

    def _description(self, sub_group: int) -> str:
        """What must be the same for files to be of use."""
        leaves = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(self._layout.whole)]
        where = (jax.process_index(), jax.process_count(), dict(self._fixed.mesh.shape))
        layout = (self._partition.names, self._partition.placements, leaves, min(sub_group, GROUP_ELEMENTS), where)
        return hashlib.sha256(repr(layout).encode()).hexdigest()


def _part_name(number: int, index: tuple[slice, ...]) -> str:
    return ",".join(map(str, (number, *(part.start or 0 for part in index))))
