"""`jzero`: what DeepSpeed has no key for. DeepSpeed ignores the section, so one file serves both."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from jzero.base.types import Json
from jzero.config.schema.activation import Remat
from jzero.config.schema.param_groups import ParamGroups
from jzero.config.schema.precision import SMALLEST_SCALE
from jzero.config.schema.saving import Saving
from jzero.config.schema.scalars import NonNegative, Positive32, TextOrFalse, Texts, choice, real
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured


class Extensions(Section):
    """The top-level section `jzero`."""

    max_loss_scale: Annotated[float, real(SMALLEST_SCALE, 1.7e38)] | None = honoured(
        None, "fp16's dynamic loss scale neither starts nor grows above this"
    )
    max_skipped_steps_in_a_row: Positive32 | None = honoured(None, "training stops after so many, in fp32 and bf16 too")
    keep_fp32: Texts = honoured(
        (),
        "parameters whose dotted name one of these regular expressions is found in last and compute in fp32; the model "
        "rounds what comes of them, as jzero's own do, and Flax's norms if they are given a `dtype`; leaves of "
        'the batch, such as times or coordinates, are named as `"batch.t"` (targets, on which no weight acts, are not '
        "rounded anyway)",
    )
    param_groups: ParamGroups = honoured(
        (),
        'other settings for some parameters, such as `[{"match": "bias|norm|scale", "weight_decay": 0.0}, '
        '{"match": "^embed", "lr_multiplier": 0.1}]`: the first entry whose regular expression is found in a '
        "parameter's dotted name gives its weight decay and the factor on its learning rate",
    )
    two_level: Annotated[str, choice("none", "auto")] = honoured(
        "none",
        '`"auto"`, stage 3: as `zero_optimization.zero_hpz_partition_size` with the number of devices of a node; where '
        "there is one node, stage 3 as it is",
    )
    remat: Remat | None = honoured(None, "rematerialisation of modules that the model does not recompute by itself")

    checkpoint: Saving = honoured(Saving())
    compile_cache: TextOrFalse | None = honoured(
        None,
        "the folder in which `jzero train` keeps compiled programs for its next start, or false; by default "
        "`compile_cache` inside `output_dir` where the devices are GPUs, and none for CPUs",
    )

    hang_seconds: NonNegative = honoured(
        300.0,
        "`jzero train`: a process that makes no progress for so long, or for ten mean steps if that is longer, writes "
        "what its threads do and ends with status 75; a save may take six times as long; 0 for never",
    )

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Regular expressions must be some."""
        for pattern in values.get("keep_fp32", ()):
            try:
                re.compile(pattern)
            except re.error as error:
                yield "keep_fp32", f"holds {pattern!r}, which is no regular expression: {error}"
