r"""What published checkpoints call the leaves of jzero's models, as data that reads both ways.

A rule pairs a tensor of a file with a leaf of a model. `{n}` stands for the number of a layer in both; where layers are
scanned, the leaf holds the tensors of all of them, and its name does without. What a tensor passes through on its way
into the leaf has an inverse, so that the same rule writes the file again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

Transform: TypeAlias = Literal["same", "transpose"]
"""What a tensor passes through: torch keeps the weights of its linear layers `[out, in]`, Flax `[in, out]`."""


class Both(NamedTuple):
    """A function of an array and its inverse; both give views."""

    into_leaf: Callable[[np.ndarray], np.ndarray]
    into_file: Callable[[np.ndarray], np.ndarray]


TRANSFORMS: Mapping[Transform, Both] = {
    "same": Both(lambda x: x, lambda x: x),
    "transpose": Both(lambda x: x.T, lambda x: x.T),
}
"""Each transform with its inverse."""


class Rule(NamedTuple):
    """A tensor of a file and the leaf that it becomes.

    Attributes:
        tensor: its name, with `{n}` for the number of a layer.
        leaf: the dotted name in a model whose layers are not scanned, with the same `{n}`.
        transform: what it passes through.

    Example:
        >>> rule = Rule("model.layers.{n}.mlp.up_proj.weight", "h.{n}.mlp.up.kernel", "transpose")
        >>> rule.stacked, rule.of_layer(3)
        ('h.mlp.up.kernel', ('model.layers.3.mlp.up_proj.weight', 'h.3.mlp.up.kernel'))
    """

    tensor: str
    leaf: str
    transform: Transform = "same"

    @property
    def stacked(self) -> str:
        """The name of the leaf in a model whose layers are scanned."""
        return self.leaf.replace(".{n}", "")

    @property
    def of_layers(self) -> bool:
        """Whether there is one for each layer."""
        return "{n}" in self.tensor

    def of_layer(self, n: int) -> tuple[str, str]:
        """Tensor and leaf of a layer."""
        return self.tensor.replace("{n}", str(n)), self.leaf.replace("{n}", str(n))


class Names(NamedTuple):
    """The names of a family.

    Attributes:
        rules: for every leaf that a model of the family may have.
        spellings: pattern and replacement that bring other spellings of tensors' names into that of the rules: without
            or with another prefix, or as older versions wrote them.
        bare: a prefix that files of the model without its head leave out.
        dropped: patterns of tensors that are no parameters of the model.
        new: leaves that are made anew where the file lacks them: a head for classification.
        vocabulary: leaves whose rows are token ids, with the dimension in the leaf.
    """

    rules: Sequence[Rule]
    spellings: Sequence[tuple[str, str]] = ()
    bare: str = ""
    dropped: Sequence[str] = ()
    new: Sequence[str] = ()
    vocabulary: Mapping[str, int] = {}

    def spelt(self, names: Sequence[str]) -> dict[str, str]:
        """The rules' name of each tensor of a file -> its own name.

        Example:
            >>> DECODER.spelt(["embed_tokens.weight"])
            {'model.embed_tokens.weight': 'embed_tokens.weight'}
        """
        changed = {name: name for name in names}
        for pattern, to in self.spellings:
            changed = {re.sub(pattern, to, spelt): name for spelt, name in changed.items()}
        if self.bare and not any(name.startswith(self.bare) for name in changed):
            heads = tuple(rule.tensor for rule in self.rules if not rule.tensor.startswith(self.bare))
            changed = {n if n in heads else self.bare + n: name for n, name in changed.items()}
        return changed

    def is_dropped(self, spelt: str) -> bool:
        """Whether a tensor is none of the model's parameters."""
        return any(re.fullmatch(pattern, spelt) for pattern in self.dropped)


def _linear(tensor: str, leaf: str, *, bias: bool = True) -> list[Rule]:
    kernel = Rule(f"{tensor}.weight", f"{leaf}.kernel", "transpose")
    return [kernel, Rule(f"{tensor}.bias", f"{leaf}.bias")] if bias else [kernel]


def _layer_norm(tensor: str, leaf: str) -> list[Rule]:
    return [Rule(f"{tensor}.weight", f"{leaf}.scale"), Rule(f"{tensor}.bias", f"{leaf}.bias")]


def _decoder(norms: Mapping[str, str]) -> Names:
    """Names of the Llama-like families, which differ in what norms there are."""
    layer, h = "model.layers.{n}", "h.{n}"
    attention = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "proj"}
    rules = [
        Rule("model.embed_tokens.weight", "wte"),
        *(r for a, b in attention.items() for r in _linear(f"{layer}.self_attn.{a}", f"{h}.attn.{b}")),
        *(Rule(f"{layer}.self_attn.{a}.weight", f"{h}.attn.{a}.scale") for a in ("q_norm", "k_norm")),
        *(r for a in ("gate", "up", "down") for r in _linear(f"{layer}.mlp.{a}_proj", f"{h}.mlp.{a}")),
        *(Rule(f"{layer}.{tensor}.weight", f"{h}.{leaf}.scale") for tensor, leaf in norms.items()),
        Rule("model.norm.weight", "norm_f.scale"),
        *_linear("lm_head", "head", bias=False),
    ]
    return Names(
        rules,
        spellings=[(r"^language_model\.", ""), (r"^model\.language_model\.", "model.")],
        bare="model.",
        dropped=[r".*rotary_emb\.inv_freq", r"(model\.)?(vision_tower|multi_modal_projector)\..*"],
        vocabulary={"wte": 0, "head.kernel": 1},
    )


DECODER = _decoder({"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2"})
AFTER = _decoder({"post_attention_layernorm": "after_1", "post_feedforward_layernorm": "after_2"})
BOTH = _decoder(
    {
        "input_layernorm": "norm_1",
        "post_attention_layernorm": "after_1",
        "pre_feedforward_layernorm": "norm_2",
        "post_feedforward_layernorm": "after_2",
    }
)


def _conv1d(tensor: str, leaf: str) -> list[Rule]:
    """GPT-2's linear layers, which are `[in, out]` already."""
    return [Rule(f"{tensor}.weight", f"{leaf}.kernel"), Rule(f"{tensor}.bias", f"{leaf}.bias")]


GPT2 = Names(
    [
        Rule("transformer.wte.weight", "wte"),
        Rule("transformer.wpe.weight", "wpe"),
        *(r for a in ("ln_1", "ln_2") for r in _layer_norm(f"transformer.h.{{n}}.{a}", f"h.{{n}}.{a}")),
        *_conv1d("transformer.h.{n}.attn.c_attn", "h.{n}.attn.qkv"),
        *_conv1d("transformer.h.{n}.attn.c_proj", "h.{n}.attn.proj"),
        *_conv1d("transformer.h.{n}.mlp.c_fc", "h.{n}.mlp.fc"),
        *_conv1d("transformer.h.{n}.mlp.c_proj", "h.{n}.mlp.proj"),
        *_layer_norm("transformer.ln_f", "ln_f"),
        *_linear("lm_head", "head", bias=False),
    ],
    bare="transformer.",
    dropped=[r".*\.attn\.(bias|masked_bias)"],
    vocabulary={"wte": 0, "head.kernel": 1},
)


def _encoder(prefix: str, pooler: str, head: str) -> Names:
    layer = f"{prefix}.encoder.layer.{{n}}"
    tables = {"word": "wte", "position": "wpe", "token_type": "types"}
    return Names(
        [
            *(Rule(f"{prefix}.embeddings.{a}_embeddings.weight", b) for a, b in tables.items()),
            *_layer_norm(f"{prefix}.embeddings.LayerNorm", "ln_e"),
            *(
                r
                for a, b in {"query": "q", "key": "k", "value": "v"}.items()
                for r in _linear(f"{layer}.attention.self.{a}", f"h.{{n}}.attn.{b}")
            ),
            *_linear(f"{layer}.attention.output.dense", "h.{n}.attn.proj"),
            *_layer_norm(f"{layer}.attention.output.LayerNorm", "h.{n}.ln_1"),
            *_linear(f"{layer}.intermediate.dense", "h.{n}.fc"),
            *_linear(f"{layer}.output.dense", "h.{n}.proj"),
            *_layer_norm(f"{layer}.output.LayerNorm", "h.{n}.ln_2"),
            *_linear(pooler, "pooler"),
            *_linear(head, "head"),
        ],
        spellings=[(r"\.gamma$", ".weight"), (r"\.beta$", ".bias")],
        bare=f"{prefix}.",
        dropped=[r".*\.position_ids", r"cls\..*", r"lm_head\..*", rf"{prefix}\.pooler\..*"],
        new=["pooler.kernel", "pooler.bias", "head.kernel", "head.bias"],
        vocabulary={"wte": 0},
    )


BERT = _encoder("bert", "bert.pooler.dense", "classifier")
ROBERTA = _encoder("roberta", "classifier.dense", "classifier.out_proj")
