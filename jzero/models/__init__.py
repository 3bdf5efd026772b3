"""The models that jzero ships, their losses, and `build`, which makes what a run file names."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.models.families import FAMILIES, BuiltModel, build, from_hf
    from jzero.models.gpt import GPT
    from jzero.models.gpt_config import GPTConfig
    from jzero.models.gpt_linen import GPTLinen
    from jzero.models.llama import Llama
    from jzero.models.llama_config import LlamaConfig
    from jzero.models.losses import classification_loss, next_token_loss
    from jzero.models.lstm import LSTM, LSTMConfig
    from jzero.models.resnet import ResNet
    from jzero.models.resnet_config import ResNetConfig
    from jzero.models.sizes import SIZES, with_size
    from jzero.models.vit import ViT, ViTConfig
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.models.families": ("FAMILIES", "BuiltModel", "build", "from_hf"),
            "jzero.models.gpt": ("GPT",),
            "jzero.models.gpt_config": ("GPTConfig",),
            "jzero.models.gpt_linen": ("GPTLinen",),
            "jzero.models.llama": ("Llama",),
            "jzero.models.llama_config": ("LlamaConfig",),
            "jzero.models.losses": ("classification_loss", "next_token_loss"),
            "jzero.models.lstm": ("LSTM", "LSTMConfig"),
            "jzero.models.resnet": ("ResNet",),
            "jzero.models.resnet_config": ("ResNetConfig",),
            "jzero.models.sizes": ("SIZES", "with_size"),
            "jzero.models.vit": ("ViT", "ViTConfig"),
        },
    )

__all__ = [
    "FAMILIES",
    "GPT",
    "LSTM",
    "SIZES",
    "BuiltModel",
    "GPTConfig",
    "GPTLinen",
    "LSTMConfig",
    "Llama",
    "LlamaConfig",
    "ResNet",
    "ResNetConfig",
    "ViT",
    "ViTConfig",
    "build",
    "classification_loss",
    "from_hf",
    "next_token_loss",
    "with_size",
]
