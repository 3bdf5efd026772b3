"""What a training step and an engine ask of the place where state lies: on the devices, in host memory, on NVMe.

Two interfaces, since a run has two sides. `Offload` is what the program of a step is written with: how parameters reach
the devices, and how they are updated. `StateStore` is what an engine holds: it makes, changes, shows and replaces a
state, whatever part of it is in files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jzero.base.types import Batch, Casts, Grads, Mask, Metrics, OptState, Params, Placements, PyTree
from jzero.offload.host_budget import Budget


class DeferredUpdate(NamedTuple):
    """What a step's program leaves to be done outside of it; see `StepUpdate`.

    Attributes:
        grads: of the parameters in files, in stored shapes: averaged over the batch, or sums that `divisor` divides.
        scalars: what their update reads beside their own state, by number among the operands of the whole update.
        divisor: `f32[]`, what gradients are to be divided by; None if by nothing.
        finite: `bool[]`, whether the step is taken.
    """

    grads: list[jax.Array]
    scalars: dict[int, jax.Array]
    divisor: jax.Array | None
    finite: jax.Array


class UpdateInputs(NamedTuple):
    """What the update of a step is made of.

    Attributes:
        trained: the trainable parameters, stored shapes.
        opt_state: the optimizer's state, stored shapes.
        grads: like `trained`.
        unscale: `f32[]`, what gradients on the host are still to be multiplied by.
        loss: `f32[]`.
        norm: `f32[]`, of all gradients.
        finite: `bool[]`, whether the step is taken.
    """

    trained: Params
    opt_state: OptState
    grads: Grads
    unscale: jax.Array
    loss: jax.Array
    norm: jax.Array
    finite: jax.Array


class StepUpdate(NamedTuple):
    """What an update gives: the old values if the step is skipped.

    Attributes:
        trained: the trainable parameters, stored shapes; None for what is made from files.
        opt_state: the optimizer's state, stored shapes; None for what is in files.
        deferred: what is left to be done outside the program; () where nothing is.
    """

    trained: Params
    opt_state: OptState
    deferred: DeferredUpdate | tuple[()] = ()


@dataclass(frozen=True)
class OptimizerLayout:
    """What is fixed about the parameters of a run and their optimizer.

    Attributes:
        optimizer: the optax transformation, without clipping.
        max_norm: to which gradients are clipped; 0 for no clipping.
        placements: pytree of `Placement` like the parameters.
        opt_placements: pytree of `Placement` like the optimizer's state.
        trainable: pytree of bool like the parameters.
        casts: pytree of tuples of dtypes like the parameters: from lasting to compute dtype.
        param_dtype: in which parameters that compute in 16 bits last.
        mesh: the devices.
    """

    optimizer: optax.GradientTransformation
    max_norm: float
    placements: Placements
    opt_placements: Placements
    trainable: Mask
    casts: Casts
    param_dtype: DTypeLike
    mesh: Mesh


class NewState(NamedTuple):
    """How a new state is made, in true shapes and before it is placed anywhere.

    Attributes:
        init: `init(seed, params=None) -> state`, of padded arrays.
        state: the abstract state, true shapes.
        placements: a `Placement` for each of its leaves.
    """

    init: Callable[..., PyTree]
    state: PyTree
    placements: Placements


class StateLayout(NamedTuple):
    """Where each array of a state lies.

    Attributes:
        state: the abstract state of a step's program, stored shapes, with shardings.
        whole: the same with what is in files, which then lies in host memory.
        init: `init(seed, params=None) -> state`.
        step_shardings: of what a step's program gives: the state, and what is deferred.
        budget: what each device takes of its host.
        donates: whether a step may overwrite the state that it is given.
    """

    state: PyTree
    whole: PyTree
    init: Callable[..., PyTree]
    step_shardings: tuple[PyTree, PyTree]
    budget: Budget
    donates: bool


class Run(Protocol):
    """The compiled functions of a run; see `jzero.zero.build.Functional`."""

    @property
    def init(self) -> Callable[..., PyTree]:
        """Makes the part of a new state that is not in files."""
        ...

    @property
    def init_over(self) -> Callable[..., PyTree]:
        """The same of parameters whose memory it takes."""
        ...

    @property
    def program(self) -> Callable[[PyTree, Batch], PyTree]:
        """`program(state, batch) -> StepOutput`."""
        ...

    @property
    def whole_init(self) -> Callable[..., PyTree]:
        """Makes a whole new state; a plain function."""
        ...


class StateStore(Protocol):
    """An engine's state, wherever its parts lie. States are `TrainState`s."""

    def init(self, seed: np.uint32, params: Params | None = None) -> PyTree:
        """Makes a new state."""
        ...

    def init_over(self, seed: np.uint32, params: Params) -> PyTree:
        """Makes a new state of parameters in stored shapes and dtypes, which nobody else needs."""
        ...

    def step(self, state: PyTree, batch: Batch) -> tuple[PyTree, Metrics]:
        """Takes one training step."""
        ...

    def whole(self, state: PyTree) -> PyTree:
        """The state as it would be without files."""
        ...

    def replace(self, whole: PyTree) -> PyTree:
        """Puts another state, as `whole` returns it, in the place of the present one."""
        ...

    def recover(self, state: PyTree) -> PyTree:
        """Takes up what an earlier run has left."""
        ...


class Offload(Protocol):
    """How the program of a step reaches its state. Everything but `place` and `open_store` is for use inside `jit`."""

    @property
    def piece_elements(self) -> int:
        """Elements of a parameter on the host that are on the device at once."""
        ...

    @property
    def fetches_at_use(self) -> bool:
        """Whether parameters come to the device at each use, and gradients leave it as they arise."""
        ...

    def fetched(self, params_sharded: Params) -> Params:
        """Parameters as a step starts with them: on the devices, unless each use fetches for itself."""
        ...

    def grad_params(self, params_sharded: Params) -> Params:
        """What gradients are taken of, of parameters that `fetched` gave."""
        ...

    def compute_shards(self, params_sharded: Params) -> Params | None:
        """Shards cast for compute once a step, None for a leaf that each use casts; None if that holds for all."""
        ...

    def update(self, step: UpdateInputs) -> StepUpdate:
        """The new parameters and optimizer state."""
        ...

    def streamed_bytes(self) -> int:
        """Of the state that passes through a device in an update, what is there at once."""
        ...

    def place(self, new: NewState, n_micro: int) -> StateLayout:
        """Where the arrays of a state lie; `n_micro` is the number of micro-batches in a step."""
        ...

    def open_store(self, run: Run, layout: StateLayout) -> StateStore:
        """The engine's side of it. Only this opens files."""
        ...
