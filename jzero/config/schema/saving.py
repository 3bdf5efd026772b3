"""`jzero.checkpoint`: when `jzero train` saves, and what it keeps, beyond Hugging Face's names."""

from typing import Annotated

from jzero.config.schema.scalars import Positive, real
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured


class Saving(Section):
    """`jzero.checkpoint`."""

    save_minutes: Annotated[float, real(1e-3, 1e9)] | None = honoured(
        None, "a checkpoint is also written when so many minutes have passed since the last one"
    )
    keep_every: Positive | None = honoured(
        None, "checkpoints whose step is a multiple of this stay, whatever `save_total_limit` says"
    )
