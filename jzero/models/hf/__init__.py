"""Models that are published in the format of Hugging Face: their forms, names and configurations."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.models.hf.decoder import Decoder
    from jzero.models.hf.decoder_config import DecoderConfig
    from jzero.models.hf.encoder import Encoder
    from jzero.models.hf.encoder_config import EncoderConfig
    from jzero.models.hf.gpt2 import GPT2
    from jzero.models.hf.gpt2_config import GPT2Config
    from jzero.models.hf.load import HFWeights
    from jzero.models.hf.losses import row_classification_loss
    from jzero.models.hf.rope import Rope
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.models.hf.decoder": ("Decoder",),
            "jzero.models.hf.decoder_config": ("DecoderConfig",),
            "jzero.models.hf.encoder": ("Encoder",),
            "jzero.models.hf.encoder_config": ("EncoderConfig",),
            "jzero.models.hf.gpt2": ("GPT2",),
            "jzero.models.hf.gpt2_config": ("GPT2Config",),
            "jzero.models.hf.load": ("HFWeights",),
            "jzero.models.hf.losses": ("row_classification_loss",),
            "jzero.models.hf.rope": ("Rope",),
        },
    )

__all__ = [
    "GPT2",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "GPT2Config",
    "HFWeights",
    "Rope",
    "row_classification_loss",
]
