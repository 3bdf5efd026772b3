"""The `config.json` of GPT-2, BERT and RoBERTa as configurations of jzero's models."""

from collections.abc import Mapping
from typing import Unpack

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.models.hf.decoder_keys import Form, activation
from jzero.models.hf.encoder_config import EncoderConfig
from jzero.models.hf.gpt2_config import GPT2Config
from jzero.models.hf.keys import Keys

_GPT2 = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}
_BERT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
DEFAULTS: Mapping[str, Mapping[str, Json]] = {
    "gpt2": _GPT2,
    "bert": {**_BERT, "vocab_size": 30522, "pad_token_id": 0},
    "roberta": {**_BERT, "vocab_size": 50265, "pad_token_id": 1},
}
"""Of each family what stands for a key that its file lacks, as its class in transformers has it."""


def gpt2_config(values: Mapping[str, Json], where: str, **form: Unpack[Form]) -> GPT2Config:
    """The configuration of a GPT-2.

    Example:
        >>> gpt2_config({"n_embd": 64, "n_head": 4}, "config.json").d_ff
        256
    """
    keys = Keys(values, where, DEFAULTS["gpt2"])
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        keys.refuse(key, False)
    d = keys.whole("n_embd")
    return GPT2Config(
        vocab_size=keys.whole("vocab_size"),
        seq_len=keys.whole("n_positions"),
        d_model=d,
        n_layer=keys.whole("n_layer"),
        n_head=keys.whole("n_head"),
        d_ff=keys.whole("n_inner", 4 * d),
        activation=activation(keys, "activation_function"),
        norm_epsilon=keys.number("layer_norm_epsilon"),
        tie_head=keys.flag("tie_word_embeddings"),
        scale_attention=keys.flag("scale_attn_weights"),
        dropout=keys.number("resid_pdrop"),
        embedding_dropout=keys.number("embd_pdrop"),
        attention_dropout=keys.number("attn_pdrop"),
        init_std=keys.number("initializer_range"),
        **form,
    )


def n_labels(values: Mapping[str, Json]) -> int:
    """How many classes a configuration has; 2 where it does not say, as in transformers.

    Example:
        >>> n_labels({"id2label": {"0": "no", "1": "yes", "2": "perhaps"}}), n_labels({})
        (3, 2)
    """
    names = values.get("id2label")
    return len(names) if isinstance(names, Mapping) else int(values.get("num_labels") or 2)


def encoder_config(family: str, values: Mapping[str, Json], where: str, **form: Unpack[Form]) -> EncoderConfig:
    """The configuration of a BERT or RoBERTa.

    Example:
        >>> encoder_config("roberta", {"max_position_embeddings": 514}, "config.json").seq_len
        512
    """
    keys = Keys(values, where, DEFAULTS[family])
    for key in ("is_decoder", "add_cross_attention"):
        keys.refuse(key, False)
    keys.refuse("position_embedding_type", "absolute")
    keys.refuse("problem_type", "single_label_classification")
    roberta, labels = family == "roberta", n_labels(values)
    if labels < 2:
        raise ConfigError(f"{where} has {labels} label, which makes a regression of it; jzero has classification.")
    pad = keys.pad_token()
    if roberta and pad is None:
        raise keys.wrong("pad_token_id", "a token id, behind which positions begin")
    dropout = keys.number("hidden_dropout_prob")
    return EncoderConfig(
        vocab_size=keys.whole("vocab_size"),
        n_positions=keys.whole("max_position_embeddings"),
        n_types=keys.whole("type_vocab_size"),
        d_model=keys.whole("hidden_size"),
        n_layer=keys.whole("num_hidden_layers"),
        n_head=keys.whole("num_attention_heads"),
        d_ff=keys.whole("intermediate_size"),
        n_labels=labels,
        first_position=pad + 1 if roberta and pad is not None else 0,
        pad_token=pad,
        activation=activation(keys, "hidden_act"),
        norm_epsilon=keys.number("layer_norm_eps"),
        dropout=dropout,
        attention_dropout=keys.number("attention_probs_dropout_prob"),
        head_dropout=keys.number("classifier_dropout", dropout),
        drops_first=roberta,
        init_std=keys.number("initializer_range"),
        **form,
    )
