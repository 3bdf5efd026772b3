"""The state that lasts between steps."""

from dataclasses import dataclass

import jax

from jzero.base.types import ModelState, OptState, Params
from jzero.zero.loss_scale import LossScaleState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a run needs to continue.

    Attributes:
        params: the master parameters, fp32 in mixed precision, sharded from stage 1 on; frozen ones included.
        opt_state: the optimizer's state for the trainable parameters, sharded like them.
        model_state: what else the model carries, such as BatchNorm statistics; replicated.
        loss_scale: the loss scaler.
        step: `int32[]`, training steps taken, skipped ones included.
        applied_steps: `int32[]`, steps that changed the parameters; it drives the learning-rate schedule.
        rng: `uint32[...]`, the key from which each step derives its random streams.
    """

    params: Params
    opt_state: OptState
    model_state: ModelState
    loss_scale: LossScaleState
    step: jax.Array
    applied_steps: jax.Array
    rng: jax.Array
