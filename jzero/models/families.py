"""The models that a run file can name: its `model` part becomes a factory, a loss function and a hidden size.

A family is one function from sizes to these three; adding one to `FAMILIES` is all that a new model needs. The modules
themselves, and Flax with them, are imported when one is made: the sizes of most families are known without.
"""

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.models.gpt_config import GPTConfig
from jzero.models.hf.decoder_keys import Form
from jzero.models.hf.load import HFWeights, open_hf
from jzero.models.llama_config import LlamaConfig
from jzero.models.losses import classification_loss, linen_next_token_loss, next_token_loss
from jzero.models.resnet_config import ResNetConfig
from jzero.models.sizes import with_size

IMAGE_SIZE = 224
"""Height and width of the images that a ResNet is planned for; it takes any."""


class _Sizes(Protocol):
    """A dataclass of a family's sizes."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]


S = TypeVar("S", bound=_Sizes)


class BuiltModel(NamedTuple):
    """What `jzero.initialize` needs to know of a model.

    Attributes:
        factory: a function `rngs -> NNX module`, or a Linen module.
        loss_fn: its loss function.
        hidden_size: the width by which DeepSpeed scales its `"auto"` buffer sizes and thresholds.
        n_params: number of parameters.
        seq_len: the longest sequence the model takes; None for any, and for a model of images.
        vocab_size: number of token ids; None for a model of images.
        image: height, width and channels of an image; None for a model of text.
        packs: whether it takes rows of several documents, which do not see each other.
        n_labels: number of classes of a model that classifies rows of text; None for others.
        weights: what a published checkpoint holds, for `jzero.initialize(params=...)`; None to begin anew.
    """

    factory: Callable
    loss_fn: Callable
    hidden_size: int
    n_params: int
    seq_len: int | None = None
    vocab_size: int | None = None
    image: tuple[int, int, int] | None = None
    packs: bool = False
    n_labels: int | None = None
    weights: HFWeights | None = None

    def batch(self, rows: int, seq_len: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of a batch, as `loss_fn` takes it.

        Args:
            rows: sequences or images.
            seq_len: tokens that are predicted in each sequence; nothing to a model of images.
        """
        label = jax.ShapeDtypeStruct((rows,), jnp.int32)
        if self.n_labels is not None:
            return {"tokens": jax.ShapeDtypeStruct((rows, seq_len), jnp.int32), "label": label}
        if self.image is None:
            return {"tokens": jax.ShapeDtypeStruct((rows, seq_len + 1), jnp.int32)}
        return {"image": jax.ShapeDtypeStruct((rows, *self.image), jnp.float32), "label": label}


def _gpt(sizes: Mapping[str, Json]) -> BuiltModel:
    api = sizes.get("api", "nnx")
    config = _config(GPTConfig, "gpt", sizes, "api")
    if api == "nnx":
        factory, loss_fn = _module("jzero.models.gpt", "GPT", config), next_token_loss
    elif api == "linen":
        from jzero.models.gpt_linen import GPTLinen

        factory, loss_fn = GPTLinen(config), linen_next_token_loss
    else:
        raise ConfigError(f"model.api is {api!r}{_nearest(api, ['nnx', 'linen'])}; it must be nnx or linen.")
    facts = config.d_model, config.n_params, config.seq_len, config.vocab_size
    return BuiltModel(factory, loss_fn, *facts, packs=True)


def _llama(sizes: Mapping[str, Json]) -> BuiltModel:
    config = _config(LlamaConfig, "llama", sizes)
    factory = _module("jzero.models.llama", "Llama", config)
    facts = config.d_model, config.n_params, config.seq_len, config.vocab_size
    return BuiltModel(factory, next_token_loss, *facts, packs=True)


def _vit(sizes: Mapping[str, Json]) -> BuiltModel:
    from jzero.models.vit import ViTConfig

    config = _config(ViTConfig, "vit", sizes)
    factory = _module("jzero.models.vit", "ViT", config)
    image = (config.image_size, config.image_size, config.n_channels)
    return BuiltModel(factory, classification_loss, config.d_model, config.n_params, image=image)


def _resnet(sizes: Mapping[str, Json]) -> BuiltModel:
    config = _config(ResNetConfig, "resnet", sizes)
    factory = _module("jzero.models.resnet", "ResNet", config)
    image = (IMAGE_SIZE, IMAGE_SIZE, config.n_channels)
    return BuiltModel(factory, classification_loss, config.d_out, config.n_params, image=image)


def _lstm(sizes: Mapping[str, Json]) -> BuiltModel:
    from jzero.models.lstm import LSTMConfig

    config = _config(LSTMConfig, "lstm", sizes)
    factory = _module("jzero.models.lstm", "LSTM", config)
    return BuiltModel(factory, next_token_loss, config.d_model, config.n_params, vocab_size=config.vocab_size)


FAMILIES: dict[str, Callable[[Mapping[str, Json]], BuiltModel]] = {
    "gpt": _gpt,
    "llama": _llama,
    "vit": _vit,
    "resnet": _resnet,
    "lstm": _lstm,
}


def build(model: Mapping[str, Json]) -> BuiltModel:
    """Builds what a run file's `model` part names.

    Args:
        model: `family` and the family's sizes: the fields of `GPTConfig`, `LlamaConfig`, `ViTConfig`, `ResNetConfig` or
            `LSTMConfig`. A `gpt` also takes `api`, which is `nnx` (the default) or `linen`. A `size` of `SIZES` stands
            for all of them. `hf` in the place of both is a folder in the format of Hugging Face; beside it may stand
            `weights`, `vocab_size`, `scan_layers`, `remat` and `attention`, see `from_hf`.

    Returns:
        The model's factory, loss function and sizes; nothing is allocated.

    Raises:
        ConfigError: for an unknown family or key, with the nearest known one, and for sizes that do not fit.

    Example:
        >>> sizes = {"vocab_size": 256, "seq_len": 64, "d_model": 32, "n_layer": 1, "n_head": 2}
        >>> build({"family": "gpt", **sizes}).hidden_size
        32
    """
    if "hf" in model:
        return _hf(model)
    sizes = with_size(model)
    family = sizes.pop("family", None)
    if family is None:
        raise ConfigError(f"model lacks family; known families: {', '.join(FAMILIES)}.")
    if family not in FAMILIES:
        raise ConfigError(
            f"model.family is {family!r}{_nearest(family, FAMILIES)}; known families: {', '.join(FAMILIES)}."
        )
    return FAMILIES[family](sizes)


def from_hf(
    path: str | Path,
    *,
    weights: bool = True,
    vocab_size: int | None = None,
    labels: int | Sequence[str] | None = None,
    **form: Unpack[Form],
) -> BuiltModel:
    """Opens a folder that holds a model in the format of Hugging Face; no weights are read yet.

    Args:
        path: the folder, with `config.json` and the weights as safetensors; or `hub:OWNER/NAME`, with `@REVISION` if
            wanted, which huggingface_hub downloads.
        weights: whether the model begins with the folder's weights.
        vocab_size: another number of token ids: rows that are added are drawn anew, the others kept.
        labels: the classes of a BERT or RoBERTa, or how many, where they are others than in the folder: the head is
            then drawn anew.
        **form: `scan_layers` (by default true), `remat` and `attention`; see `jzero.models.LlamaConfig`.

    Returns:
        Factory, loss function, sizes, and `weights`, all that `jzero.initialize` needs:
        `initialize(model=m.factory, loss_fn=m.loss_fn, params=m.weights, ...)`.

    Raises:
        ConfigError: there is no such model there, jzero does not have it, or its weights are quantised.

    Example:
        >>> import json, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> sizes = {"vocab_size": 256, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
        >>> _ = (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
        >>> from_hf(folder).n_params
        7920
    """
    found = open_hf(path, {"scan_layers": True, **form}, weights=weights, vocab_size=vocab_size, labels=labels)
    return BuiltModel(**found._asdict(), packs=found.n_labels is None)


def _hf(model: Mapping[str, Json]) -> BuiltModel:
    """What a `model` part names by `hf`."""
    known = ("hf", "weights", "vocab_size", "scan_layers", "remat", "attention")
    _check_keys(model, known)
    path, rest = model["hf"], {key: value for key, value in model.items() if key != "hf"}
    if not isinstance(path, str) or not path:
        raise ConfigError(f"model.hf must be the path of a folder, or hub:OWNER/NAME, not {path!r}.")
    if not isinstance(rest.get("weights", True), bool):
        raise ConfigError(f"model.weights must be true or false, not {rest['weights']!r}.")
    return from_hf(path, **rest)


def _module(home: str, name: str, config: object) -> Callable:
    """A function `rngs -> NNX module`, whose home is imported when it is called."""
    return lambda rngs: getattr(importlib.import_module(home), name)(config, rngs=rngs)


def _config(kind: type[S], family: str, sizes: Mapping[str, Json], *options: str) -> S:
    """A family's configuration from its sizes; `options` are keys beside them."""
    fields = dataclasses.fields(kind)
    _check_keys(sizes, [*(field.name for field in fields), *options])
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in sizes]
    if missing:
        raise ConfigError(f"model lacks {', '.join(missing)}, which a {family} cannot do without.")
    return kind(**{name: value for name, value in sizes.items() if name not in options})


def _check_keys(sizes: Mapping[str, Json], known: Iterable[str]) -> None:
    for name in sizes:
        if name not in known:
            raise ConfigError(f"model has no {name!r}{_nearest(name, known)}; known: {', '.join(known)}.")


def _nearest(name: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
