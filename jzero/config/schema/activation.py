"""`activation_checkpointing`: what DeepSpeed does with the inputs of the blocks that a model recomputes.

The section never decides which blocks those are. In DeepSpeed the model marks them; here the model does too, or the
key `jzero.remat` of the same file.
"""

from typing import Annotated

from pydantic import BeforeValidator

from jzero.base.remat_policies import REMAT_POLICIES
from jzero.config.schema.scalars import Anything, Switch, Texts, choice
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured, no_effect, translated


class ActivationCheckpointing(Section):
    """`activation_checkpointing`."""

    unchecked = True

    partition_activations: Switch = no_effect(
        False,
        "DeepSpeed divides a block's inputs over its model-parallel group; here no two devices hold the same ones",
    )
    number_checkpoints: Anything = no_effect(
        None, "it sizes the buffer of contiguous_memory_optimization; the model decides how many blocks it recomputes"
    )
    contiguous_memory_optimization: Switch = no_effect(False, "XLA lays out memory before the program runs")
    synchronize_checkpoint_boundary: Switch = no_effect(False, "blocks are parts of one compiled program")
    profile: Switch = no_effect(False, "use jax.profiler")
    cpu_checkpointing: Switch = translated(
        False,
        "blocks that are recomputed, as the model or `jzero.remat` has it, keep their inputs in host memory until the "
        "backward pass; blocks that keep more, by a policy, stay as they are",
    )


class Remat(Section):
    """`jzero.remat`."""

    modules: Annotated[Texts, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = honoured(
        ...,
        "which modules recompute in the backward pass what they computed before: names of classes, or regular "
        "expressions for whole dotted paths such as `h\\.\\d+`",
    )
    policy: Annotated[str, choice(*REMAT_POLICIES)] | None = honoured(
        None, "what they keep besides their inputs; `offload` moves the inputs to host memory too"
    )
