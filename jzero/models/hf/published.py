"""A folder with a published checkpoint, before its weights are read: which model it is of, and what it calls them.

`config.json` says everything; nothing that a folder holds is run, whatever its `auto_map` names.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jzero.base.files import read_json, why
from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.models.hf import rules
from jzero.models.hf.decoder_config import DecoderConfig
from jzero.models.hf.decoder_keys import Form, decoder_config
from jzero.models.hf.encoder_config import EncoderConfig
from jzero.models.hf.gpt2_config import GPT2Config
from jzero.models.hf.other_keys import encoder_config, gpt2_config

_MOST_CONFIG = 2**24
"""Bytes of a config.json."""

ModelConfig = DecoderConfig | GPT2Config | EncoderConfig
"""The configuration of any model that a checkpoint can be of."""


class Family(NamedTuple):
    """What there is to know of a `model_type`.

    Attributes:
        names: of its tensors.
        model: the class in transformers that has its weights and its head.
        others: classes whose files hold the same weights, with another head or none.
    """

    names: rules.Names
    model: str
    others: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "llama": Family(rules.DECODER, "LlamaForCausalLM", ("LlamaModel",)),
    "mistral": Family(rules.DECODER, "MistralForCausalLM", ("MistralModel",)),
    "qwen2": Family(rules.DECODER, "Qwen2ForCausalLM", ("Qwen2Model",)),
    "qwen3": Family(rules.DECODER, "Qwen3ForCausalLM", ("Qwen3Model",)),
    "gemma2": Family(rules.BOTH, "Gemma2ForCausalLM", ("Gemma2Model",)),
    "gemma3_text": Family(
        rules.BOTH, "Gemma3ForCausalLM", ("Gemma3TextModel", "Gemma3ForConditionalGeneration", "Gemma3Model")
    ),
    "olmo2": Family(rules.AFTER, "Olmo2ForCausalLM", ("Olmo2Model",)),
    "gpt2": Family(rules.GPT2, "GPT2LMHeadModel", ("GPT2Model",)),
    "bert": Family(rules.BERT, "BertForSequenceClassification", ("BertModel", "BertForMaskedLM", "BertForPreTraining")),
    "roberta": Family(rules.ROBERTA, "RobertaForSequenceClassification", ("RobertaModel", "RobertaForMaskedLM")),
}
"""By `model_type`."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A checkpoint's folder and what its config.json says.

    Attributes:
        folder: where it lies.
        family: its `model_type`.
        values: the configuration, of the text part where there are others.
        config: the same for jzero's model.
        is_part: whether other parts than text were left out.
    """

    folder: Path
    family: str
    values: Mapping[str, Json]
    config: ModelConfig
    is_part: bool = False

    @property
    def names(self) -> rules.Names:
        """What its tensors are called."""
        return FAMILIES[self.family].names

    def to_config(self, dtype: str | None = None) -> dict[str, Json]:
        """The config.json of this model: the one that was read, with what has changed since.

        Args:
            dtype: of the files, such as "bfloat16"; as it was if None.

        Example:
            >>> values = {"model_type": "gpt2", "torch_dtype": "float32", "n_layer": 2}
            >>> Published(Path(), "gpt2", values, gpt2_config(values, "config.json")).to_config("bfloat16")
            {'model_type': 'gpt2', 'torch_dtype': 'bfloat16', 'n_layer': 2}
        """
        values = dict(self.values)
        if dtype is not None:
            values["torch_dtype" if "torch_dtype" in values else "dtype"] = dtype
        return values

    def exported_config(self, dtype: str) -> dict[str, Json]:
        """The config.json beside exported weights, which names the class that has them and their head.

        Args:
            dtype: see `to_config`.

        Example:
            >>> values = {"model_type": "gpt2", "architectures": ["GPT2Model"]}
            >>> published = Published(Path(), "gpt2", values, gpt2_config(values, "config.json"))
            >>> published.exported_config("float32")["architectures"]
            ['GPT2LMHeadModel']
        """
        return {**self.to_config(dtype), "architectures": [FAMILIES[self.family].model]}


def open_published(
    path: str | Path,
    form: Form,
    *,
    vocab_size: int | None = None,
    labels: tuple[str, ...] | None = None,
) -> Published:
    """Reads a folder's config.json.

    Args:
        path: the folder.
        form: what the user chooses beside what the file says.
        vocab_size: another number of token ids, for tokens that were added.
        labels: the names of classes, where they are others than in the file.

    Raises:
        ConfigError: there is none, it is of a model that jzero does not have, or its weights are quantised.
    """
    folder = Path(path)
    file = folder / "config.json"
    try:
        values = read_json(file, dict[str, Json], _MOST_CONFIG)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as the configuration of a published model: {why(error)}.") from error
    family, values, is_part = _text_part(str(file), values)
    if vocab_size is not None:
        values = {**values, "vocab_size": vocab_size}
    if labels is not None:
        if family not in ("bert", "roberta"):
            raise ConfigError(f"{file} is of a {family}, which predicts tokens; labels are for bert and roberta.")
        names = {str(i): name for i, name in enumerate(labels)}
        values = {key: value for key, value in values.items() if key != "num_labels"}
        values = {**values, "id2label": names, "label2id": {name: i for i, name in enumerate(labels)}}
    return Published(folder, family, values, _read(str(file), family, values, form), is_part)


def _text_part(file: str, values: Mapping[str, Json]) -> tuple[str, Mapping[str, Json], bool]:
    """The family, the configuration of its text part, and whether there are other parts."""
    _refuse_quantised(file, values)
    if values.get("model_type") == "gemma3" and isinstance(text := values.get("text_config"), Mapping):
        outer = {key: values[key] for key in ("dtype", "torch_dtype", "transformers_version") if key in values}
        named = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
        _refuse_quantised(file, text)
        return "gemma3_text", {**outer, **text, **named}, True
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        meant = difflib.get_close_matches(str(family), FAMILIES, n=1, cutoff=0.6)
        code = " The code that its auto_map names is not run." if "auto_map" in values else ""
        raise ConfigError(
            f"{file}: `model_type` is {family!r}{f' (did you mean {meant[0]!r}?)' if meant else ''}, which jzero does "
            f"not have; it has {', '.join(FAMILIES)}.{code}"
        )
    known, classes = FAMILIES[family], values.get("architectures") or []
    for name in classes:
        if name != known.model and name not in known.others:
            raise ConfigError(
                f"{file}: `architectures` names {name}, and of a {family} jzero has {known.model}; its weights can "
                f"come from {' or '.join((known.model, *known.others))}."
            )
    return family, values, False


def _refuse_quantised(file: str, values: Mapping[str, Json]) -> None:
    if (quantised := values.get("quantization_config")) is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise ConfigError(
            f"{file}: the weights are quantised (`quantization_config`{f', {method}' if method else ''}); jzero trains "
            "floating weights: take the checkpoint that they were made of."
        )


def _read(file: str, family: str, values: Mapping[str, Json], form: Form) -> ModelConfig:
    where = file or "config.json"
    if family == "gpt2":
        return gpt2_config(values, where, **form)
    if family in ("bert", "roberta"):
        return encoder_config(family, values, where, **form)
    return decoder_config(family, values, where, form)
