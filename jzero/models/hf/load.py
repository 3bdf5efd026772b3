"""A folder in the format of Hugging Face becomes a model, its loss, and weights that are still to be read."""

import dataclasses
import importlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jzero.errors import ConfigError
from jzero.models.hf.decoder_config import DecoderConfig
from jzero.models.hf.decoder_keys import Form
from jzero.models.hf.encoder_config import EncoderConfig
from jzero.models.hf.losses import row_classification_loss
from jzero.models.hf.published import ModelConfig, Published, open_published
from jzero.models.losses import next_token_loss

HUB = "hub:"
"""What a path begins with that names a repository."""

_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.jinja"]


@dataclasses.dataclass(frozen=True)
class HFWeights:
    """Weights of a published checkpoint, still to be read, which `jzero.initialize(params=...)` does shard by shard.

    Attributes:
        published: the folder and its configuration.
    """

    published: Published


class HFModel(NamedTuple):
    """What a folder holds; see `jzero.models.BuiltModel`."""

    factory: Callable
    loss_fn: Callable
    hidden_size: int
    n_params: int
    seq_len: int
    vocab_size: int
    n_labels: int | None
    weights: HFWeights | None


def open_hf(
    path: str | Path,
    form: Form,
    *,
    weights: bool = True,
    vocab_size: int | None = None,
    labels: int | Sequence[str] | None = None,
) -> HFModel:
    """Opens a folder; see `jzero.models.from_hf`."""
    folder = _from_hub(str(path)) if str(path).startswith(HUB) else Path(path)
    names = [f"LABEL_{i}" for i in range(labels)] if isinstance(labels, int) else labels
    published = open_published(folder, form, vocab_size=vocab_size, labels=None if names is None else tuple(names))
    if published.is_part:
        logging.getLogger("jzero").warning("%s: the text part is taken, the others are left out.", folder)
    if "auto_map" in published.values:
        logging.getLogger("jzero").info("%s: the code that its auto_map names is not run.", folder)
    config = published.config
    return HFModel(
        module_of(config),
        row_classification_loss if isinstance(config, EncoderConfig) else next_token_loss,
        config.d_model,
        config.n_params,
        config.seq_len,
        config.vocab_size,
        config.n_labels if isinstance(config, EncoderConfig) else None,
        HFWeights(published) if weights else None,
    )


def module_of(config: ModelConfig) -> Callable:
    """A function `rngs -> NNX module`, whose home is imported when it is called."""
    if isinstance(config, DecoderConfig):
        home, name = "jzero.models.hf.decoder", "Decoder"
    elif isinstance(config, EncoderConfig):
        home, name = "jzero.models.hf.encoder", "Encoder"
    else:
        home, name = "jzero.models.hf.gpt2", "GPT2"
    return lambda rngs: getattr(importlib.import_module(home), name)(config, rngs=rngs)


def _from_hub(path: str) -> Path:
    """Downloads what is needed of a repository, or finds it among what was downloaded before."""
    found = re.fullmatch(rf"{HUB}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", path)
    if found is None:
        raise ConfigError(f"{path!r} must be hub:OWNER/NAME or hub:OWNER/NAME@REVISION.")
    try:
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            f"{path!r} is downloaded by huggingface_hub, which is not installed: pip install huggingface_hub, or give "
            "the path of a folder."
        ) from None
    try:
        return Path(snapshot_download(found[1], revision=found[2], allow_patterns=_PATTERNS))
    except Exception as error:  # of the network, the repository, or the disk
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{path!r} cannot be downloaded: {first or type(error).__name__}.") from error
