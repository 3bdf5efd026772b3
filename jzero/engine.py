"""The engine: the object a user holds. It owns the live state and hands batches to the compiled functions."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jzero import checkpoint
from jzero.base.types import Batch, Json, Params, Placements
from jzero.config import ResolvedConfig
from jzero.errors import (
    BatchError,
    JzeroError,
    LossScaleError,
    SkippedStepsError,
)
from jzero.explain.compilations import StepCompilations
from jzero.explain.parameters import Explanation, explain
from jzero.offload.interface import StateStore
from jzero.sharding.mesh import n_data_shards, outside_meshes
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement, split, unpad
from jzero.zero import checkpointing
from jzero.zero.batches import as_sampled, rows_to_evaluate, spread, spread_rows
from jzero.zero.build import Functional
from jzero.zero.grad_stats import why_skipped
from jzero.zero.stages import StagePlan
from jzero.zero.state import TrainState


class Engine:
    """A model in training: live state, and the compiled functions that change it.

    Attributes:
        functional: the pure functions and everything fixed about the run.
        state: the live `TrainState`; its arrays are in stored (padded) shapes. With the optimizer on NVMe it has
            parameters as they compute, and None for moments that are in files.
        store: makes, changes and shows that state, wherever its parts lie.
    """

    def __init__(self, functional: Functional, state: TrainState, store: StateStore | None = None):
        self.functional = functional
        self.state = state
        self.store = functional.open_store() if store is None else store
        self._compilations = StepCompilations(functional.state)
        self._unread: dict[str, jax.Array] | None = None
        self._stopped: JzeroError | None = None

    @property
    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        return self.functional.spec.config

    @property
    def mesh(self) -> Mesh:
        """The devices, with the axes `replica`, `shard` and `tensor`."""
        return self.functional.spec.mesh

    @property
    def stage_plan(self) -> StagePlan:
        """What the ZeRO stage means."""
        return self.functional.spec.plan

    @property
    def placements(self) -> Placements:
        """How each parameter lies over the mesh: a pytree of `Placement`s like `params`."""
        return self.functional.placements.params

    @property
    @outside_meshes
    def params(self) -> Params:
        """The master parameters as global arrays of their true shapes: the live arrays, or copies of padded ones.

        With offloading they are in host memory, where `jax` cannot compute with them: `numpy.asarray` or
        `jax.device_put` makes a copy that can be used. With the optimizer on NVMe each access reads them from there.
        """
        return unpad(self.store.whole(self.state).params, self.placements)

    @outside_meshes
    def explain(self) -> Explanation:
        """What a training step does with each parameter: where it lies, when it is gathered, and what travels.

        Returns:
            One entry per parameter; `.table()` for a terminal, `.to_json()` for a machine.

        Example:
            `rich.print(engine.explain().table())`
        """
        return explain(self.functional)

    @outside_meshes
    def train_batch(self, batch: Batch) -> dict[str, jax.Array]:
        """Takes one training step.

        Args:
            batch: a pytree of arrays whose leading dimension is `train_batch_size`, or this process's part of it. Row
                `i` belongs to micro-batch `i // (rows / gradient_accumulation_steps)`.

        Returns:
            Scalars, still on the devices: `loss` (mean over the whole batch), `grad_norm` (before clipping),
            `learning_rate`, `loss_scale` and, where a schedule cycles it, `momentum` (those this step used),
            `overflow` (this step was skipped),
            `nonfinite_leaf` and `nonfinite_micro_batch` (why, see `why_skipped`; -1 where
            there is none, and where the step has one micro-batch only),
            `skipped_steps`, `skipped_in_a_row`, `skipped_share` (of the last 100 steps), `applied_steps`, and what the
            loss returned.

        Raises:
            BatchError: if the batch has other shapes than the sample. Nothing has started then: this process may come
                back with a better batch, while the others wait for it.
            LossScaleError: if the step before this one overflowed at the smallest loss scale.
            SkippedStepsError: if it was the last of `jzero.max_skipped_steps_in_a_row`.
        """
        batch = self._place(batch)
        if self._stopped is not None:
            raise self._stopped
        with self._compilations.step(self.state):
            self.state, metrics = self.store.step(self.state, batch)
        # Read one step late, while the next one already runs, so that the devices never wait for the host.
        before, self._unread = self._unread, self._watched(metrics)
        if before is not None:
            self._stop_if_lost(before)
        return metrics

    def why_skipped(self, metrics: Mapping[str, float | jax.Array]) -> str | None:
        """Says in one sentence why a step was skipped: the parameter and the micro-batch in which it went wrong first.

        Args:
            metrics: what `train_batch` returned for it.

        Returns:
            Such as "step 17 was skipped: the gradient of h.3.mlp.fc.kernel is not finite, first in micro-batch 2 of 4";
            None if the step was taken. Waits until the step is done.
        """
        if not metrics["overflow"]:
            return None
        trained, _ = split(self.placements, self.functional.spec.trainable)
        names = [path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(trained, is_leaf=is_placement)]
        return why_skipped(metrics, names, self.config.gradient_accumulation_steps)

    @outside_meshes
    def eval_batch(self, batch: Batch) -> dict[str, jax.Array]:
        """Evaluates the loss without training.

        Args:
            batch: a pytree like a training batch, of any number of rows. Those that the data shards do not divide are
                computed by every device; what they count for is their number, or the weight that the loss gives them
                (`Mean`). With several processes the shards must divide them.

        Returns:
            `loss` and what the loss returned, averaged over the batch.

        Raises:
            BatchError: leaves other than the sample's, with other numbers of rows, or of another dtype.
        """
        batch = as_sampled(batch, self.functional.batch, "eval_batch")
        rows, n_shards = rows_to_evaluate(batch, self.functional.batch), n_data_shards(self.mesh) // jax.process_count()
        whole = rows - rows % n_shards
        if whole == rows:
            divided = spread_rows(batch, self.mesh, slice(rows), divided=True)
            return self.functional.evaluate(self.state, divided)
        if jax.process_count() > 1:
            raise BatchError(
                f"eval_batch got {rows} rows; with several processes it must be a multiple of the {n_shards} data "
                "shards of this process."
            )
        divided = spread_rows(batch, self.mesh, slice(whole), divided=True) if whole else None
        return self.functional.evaluate_partial(
            self.state, divided, spread_rows(batch, self.mesh, slice(whole, None), divided=False)
        )

    @outside_meshes
    def save_checkpoint(
        self,
        path: "str | os.PathLike[str]",
        extra: dict[str, Json] | None = None,
        *,
        only: str | Sequence[str] = "*",
        wait: bool = True,
    ) -> checkpoint.Saving:
        """Writes the state, frozen parameters included; every process must call it.

        Args:
            path: a folder to create, or an earlier checkpoint to replace.
            extra: JSON-serialisable facts to store beside the state, such as a data position.
            only: globs over the paths of the leaves to save, such as `"params/*lora*"`; `*` also crosses `/`.
            wait: for the checkpoint to be complete. Without it training goes on as soon as the state is copied, and
                the save must be waited for before the program ends.

        Returns:
            The save; its `wait()` raises what went wrong in the background.

        Raises:
            CheckpointError: if it cannot be written.
        """
        saving = checkpoint.save(
            path,
            self.store.whole(self.state),
            checkpointing.describe(self.functional, self.state, extra or {}),
            placements=self.functional.placements,
            only=_globs(only),
        )
        if wait:
            saving.wait()
        return saving

    @outside_meshes
    def load_checkpoint(
        self,
        path: "str | os.PathLike[str]",
        *,
        only: str | Sequence[str] = "*",
        missing: Literal["refuse", "keep"] = "refuse",
        extra: Literal["refuse", "ignore"] = "refuse",
        changed: Literal["refuse", "keep"] = "refuse",
        grow: Literal["refuse", "pad"] = "refuse",
        layers: Mapping[str, str] | None = None,
    ) -> dict[str, Json]:
        """Reads a state back, whatever stage, devices, processes and precision it was saved under.

        Every process must call it. By default the checkpoint must have exactly the leaves of this engine's state. What
        is kept, left out or grown instead is listed in the log `jzero`, at level WARNING.

        Args:
            path: what `save_checkpoint` wrote, or a folder of checkpoints, of which the newest complete one is taken.
            only: globs over paths: `"params/*"` loads the parameters and leaves the rest alone; `*` also crosses `/`.
            missing: `"keep"` leaves the present values where the checkpoint lacks a leaf.
            extra: `"ignore"` allows leaves that only the checkpoint has.
            changed: `"keep"` leaves the present values where shapes differ, as for a new head.
            grow: `"pad"` reads a saved array into the first part of one that is longer here and leaves the present
                values beyond it, as for tokens added to a vocabulary.
            layers: where layers are unrolled there and scanned here, or the other way: the unrolled path with `*` for
                the number -> the scanned path, such as `{"h/*": "h"}`.

        Returns:
            The `extra` that was saved.

        Raises:
            CheckpointError: if there is no complete checkpoint, it belongs to another model, or it is damaged. Once its
                arrays are being read, this engine has no state until another checkpoint is loaded.

        Example:
            `engine.load_checkpoint("pretrained", only="params/*", changed="keep")` starts from given weights with a
            new head.
        """
        selection = checkpoint.Selection(_globs(only), missing, extra, changed, grow, layers=layers)
        state, metadata = checkpointing.restore(path, self.functional, self.store.whole(self.state), selection)
        self.state = self.store.replace(state)
        self._unread = self._stopped = None
        return metadata["extra"]

    @outside_meshes
    def recover(self) -> int:
        """Goes on from what an earlier run left on NVMe: its last step that was taken; every process must call it.

        For a run that was killed, before this engine's first step. A checkpoint is as good, and older.

        Returns:
            The number of steps, skipped ones included, that this state has seen. Frozen parameters stay as they are.

        Raises:
            OffloadError: nothing of this model is there.
        """
        self.state = self.store.recover(self.state)
        self._unread = self._stopped = None
        return int(self.state.step)

    def _watched(self, metrics: dict[str, jax.Array]) -> dict[str, jax.Array] | None:
        """What has to be read of a step to know whether the run goes on, if anything."""
        if self.config.precision == "fp16" and not self.config.fp16.loss_scale:
            # A copy, because the next step reuses the state's memory.
            return {**metrics, "exhausted": jnp.copy(self.state.loss_scale.exhausted)}
        return metrics if self.config.jzero.max_skipped_steps_in_a_row is not None else None

    def _stop_if_lost(self, metrics: dict[str, jax.Array]) -> None:
        """Ends a run that skips step after step."""
        most = self.config.jzero.max_skipped_steps_in_a_row
        if "exhausted" in metrics and bool(metrics["exhausted"]):
            self._stopped = LossScaleError(
                f"fp16 gradients overflow at the smallest loss scale ({float(metrics['loss_scale']):g}, "
                f"fp16.min_loss_scale): {self.why_skipped(metrics)}; the model diverges or does not fit fp16: "
                "lower the learning rate or use bf16."
            )
        elif most is not None and int(metrics["skipped_in_a_row"]) >= most:
            self._stopped = SkippedStepsError(
                f"{most} steps in a row were skipped (jzero.max_skipped_steps_in_a_row); {self.why_skipped(metrics)}; "
                "look for bad data in the batch, or lower the learning rate."
            )
        if self._stopped is not None:
            raise self._stopped

    def _place(self, batch: Batch) -> Batch:
        """Checks a training batch and spreads it over the mesh, `[rows, ...]` -> `[accumulation, micro-batch, ...]`."""
        expected, n_processes = self.functional.batch, jax.process_count()
        total = self.config.train_batch_size
        why = f"train_batch_size {total}{f' over {n_processes} processes' * (n_processes > 1)}, as in the sample"
        return spread(as_sampled(batch, expected, "batch"), expected, total // n_processes, why)


def _globs(only: str | Sequence[str]) -> tuple[str, ...]:
    return (only,) if isinstance(only, str) else tuple(only)
