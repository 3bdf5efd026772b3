"""The `config.json` of Llama, Mistral, Qwen, Gemma and OLMo 2 as the configuration of a decoder.

What a file leaves out is what the family's class in transformers has by default; `DEFAULTS` says what that is.
"""

from collections.abc import Mapping
from typing import TypedDict

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.models.hf.activations import NAMES, Activation
from jzero.models.hf.decoder_config import DecoderConfig, Norms, QKNorm
from jzero.models.hf.keys import Keys
from jzero.models.hf.rope import SCALINGS, Rope, yarn_amplitude
from jzero.ops.request import Implementation

_PLAIN = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "initializer_range": 0.02}
_GEMMA = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
}
DEFAULTS: Mapping[str, Mapping[str, Json]] = {
    "llama": {**_PLAIN, "max_position_embeddings": 2048},
    "mistral": {**_PLAIN, "max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
    "qwen2": {**_PLAIN, "max_position_embeddings": 32768, "num_key_value_heads": 32, "max_window_layers": 28},
    "qwen3": {
        **_PLAIN,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_window_layers": 28,
    },
    "gemma2": {
        **_GEMMA,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **_GEMMA,
        "max_position_embeddings": 131072,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
    },
    "olmo2": {**_PLAIN, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "pad_token_id": 1},
}
"""Of each family what stands for a key that its file lacks."""

_QK_NORMS: Mapping[str, QKNorm] = {"qwen3": "head", "gemma3_text": "head", "olmo2": "all"}
_TYPES = ("full_attention", "sliding_attention")


class Form(TypedDict, total=False):
    """What a user chooses beside what a checkpoint says; see `DecoderConfig`."""

    attention: Implementation
    scan_layers: bool
    remat: bool | str


def decoder_config(family: str, values: Mapping[str, Json], where: str, form: Form) -> DecoderConfig:
    """The configuration of a decoder.

    Args:
        family: `model_type`, one of `DEFAULTS`.
        values: what config.json holds.
        where: what messages call it.
        form: what the user chooses.

    Raises:
        ConfigError: values that are missing, or that ask for what jzero does not have.

    Example:
        >>> sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
        >>> config = decoder_config("llama", {**sizes, "num_attention_heads": 4}, "config.json", {})
        >>> config.d_head, config.rope.theta, config.seq_len
        (16, 10000.0, 2048)
    """
    keys = Keys(values, where, DEFAULTS[family])
    gemma = family.startswith("gemma")
    for key in ("use_bidirectional_attention", "use_mrope", "clip_qkv"):
        keys.refuse(key, False)
    n_head, d_model = keys.whole("num_attention_heads"), keys.whole("hidden_size")
    bias = family != "qwen2" and keys.flag("attention_bias", False)
    scalar = keys.optional("query_pre_attn_scalar") if gemma else None
    local = _local_layers(family, keys)
    rope, local_rope = _ropes(family, keys)
    norms: Norms = "after" if family == "olmo2" else "both" if gemma else "before"
    return DecoderConfig(
        vocab_size=keys.whole("vocab_size"),
        seq_len=keys.whole("max_position_embeddings"),
        d_model=d_model,
        n_layer=keys.whole("num_hidden_layers"),
        n_head=n_head,
        n_kv_head=keys.whole("num_key_value_heads", n_head),
        d_head=keys.whole("head_dim", d_model // n_head),
        d_ff=keys.whole("intermediate_size"),
        norm_epsilon=keys.number("rms_norm_eps"),
        rope=rope,
        local_rope=local_rope,
        local_layers=local,
        window=keys.whole("sliding_window") if any(local) else None,
        activation=activation(keys, "hidden_activation" if gemma else "hidden_act"),
        qkv_bias=family == "qwen2" or bias,
        out_bias=bias,
        mlp_bias=family == "llama" and keys.flag("mlp_bias", False),
        qk_norm=_QK_NORMS.get(family, "none"),
        norms=norms,
        norm_plus_one=gemma,
        scale_embedding=gemma,
        query_scale=None if scalar is None else scalar**-0.5,
        attention_softcap=keys.optional("attn_logit_softcapping") if family == "gemma2" else None,
        logit_softcap=keys.optional("final_logit_softcapping") if gemma else None,
        tie_head=keys.flag("tie_word_embeddings"),
        pad_token=keys.pad_token(),
        attention_dropout=keys.number("attention_dropout", 0.0),
        init_std=keys.number("initializer_range"),
        **form,
    )


def activation(keys: Keys, key: str) -> Activation:
    """The activation that a key names."""
    name = keys.get(key) or keys.defaults.get(key)  # older files of Gemma have null
    if not isinstance(name, str) or name not in NAMES:
        raise keys.wrong(key, f"one of {', '.join(NAMES)}")
    return NAMES[name]


def _local_layers(family: str, keys: Keys) -> tuple[bool, ...]:
    """Of each layer whether its attention sees a window only."""
    n_layer = keys.whole("num_hidden_layers")
    if family == "mistral":
        return (keys.get("sliding_window") is not None,) * n_layer
    if family not in ("qwen2", "qwen3", "gemma2", "gemma3_text"):
        return ()
    if family.startswith("qwen") and not keys.flag("use_sliding_window", False):
        return ()
    if types := keys.texts("layer_types", _TYPES):
        if len(types) != n_layer:
            raise keys.wrong("layer_types", f"a list of {n_layer}, one for each layer")
        return tuple(kind == "sliding_attention" for kind in types)
    if family.startswith("qwen"):
        first = keys.whole("max_window_layers")
        return tuple(keys.get("sliding_window") is not None and i >= first for i in range(n_layer))
    every = 2 if family == "gemma2" else keys.whole("sliding_window_pattern", keys.get("_sliding_window_pattern") or 6)
    return tuple(bool((i + 1) % every) for i in range(n_layer))


def _ropes(family: str, keys: Keys) -> tuple[Rope, Rope | None]:
    """The rotary positions, and those of local layers where they are others; as transformers 4 or 5 writes them."""
    given = keys.part("rope_parameters")
    by_layer = given is not None and any(kind in given.values for kind in _TYPES)
    if family == "gemma3_text":
        if given is not None and not by_layer:
            raise keys.wrong("rope_parameters", "an object for each of full_attention and sliding_attention")
        full = given.part("full_attention") if given is not None else keys.part("rope_scaling")
        sliding = given.part("sliding_attention") if given is not None else None
        local = Rope(keys.number("rope_local_base_freq", 10000.0)) if given is None else _rope(sliding, keys, 10000.0)
        return _rope(full, keys, 1000000.0), local
    if given is not None and by_layer:
        kinds = [given.part(kind) for kind in _TYPES]
        return _rope(kinds[0], keys, 10000.0), _rope(kinds[1], keys, 10000.0)
    return _rope(keys.part("rope_scaling") if given is None else given, keys, 10000.0), None


def _rope(given: Keys | None, keys: Keys, theta: float) -> Rope:
    theta = keys.number("rope_theta", theta)
    keys.refuse("partial_rotary_factor", 1, 1.0)
    if given is None:
        return Rope(theta)
    given.refuse("partial_rotary_factor", 1, 1.0)
    theta, scaling = given.number("rope_theta", theta), given.get("rope_type") or given.get("type") or "default"
    if scaling not in SCALINGS:
        raise ConfigError(
            f"{given.where}: `rope_type` is {scaling!r}, which jzero does not have; it has {', '.join(SCALINGS)}."
        )
    if scaling == "default":
        return Rope(theta)
    factor = given.number("factor")
    if scaling == "linear":
        return Rope(theta, "linear", factor)
    original = given.whole("original_max_position_embeddings", keys.whole("max_position_embeddings"))
    if scaling == "llama3":
        return Rope(
            theta, "llama3", factor, original, given.number("low_freq_factor"), given.number("high_freq_factor")
        )
    amplitude = yarn_amplitude(factor, given.number("mscale", 0.0), given.number("mscale_all_dim", 0.0))
    return Rope(
        theta, "yarn", factor, original, given.number("beta_slow", 0.0) or 1.0, given.number("beta_fast", 0.0) or 32.0,
        amplitude=given.number("attention_factor", amplitude), truncate=given.flag("truncate", True),
    )  # fmt: skip
