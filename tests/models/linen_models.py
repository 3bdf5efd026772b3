"""Linen forms of three families, made of Flax's own layers: something to compare with, and Linen models to train."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jzero.models import LlamaConfig, LSTMConfig, ResNetConfig, classification_loss
from jzero.models.ops import rotate
from jzero.models.resnet_config import BlockSizes, Convolution


class LinenLlama(nn.Module):
    """Repeats key and value heads where the NNX form groups queries."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, tokens):
        config = self.config
        dense = lambda width, name: nn.Dense(width, use_bias=False, name=name)
        norm = lambda name: nn.RMSNorm(epsilon=config.norm_epsilon, name=name)
        heads = lambda x: x.reshape(*x.shape[:2], -1, config.d_head)
        x = nn.Embed(config.vocab_size, config.d_model, name="wte")(tokens)
        for i in range(config.n_layer):
            y = norm(f"norm_1_{i}")(x)
            q = rotate(heads(dense(config.d_model, f"q_{i}")(y)), config.rope_theta)
            k = rotate(heads(dense(config.d_kv, f"k_{i}")(y)), config.rope_theta)
            v = heads(dense(config.d_kv, f"v_{i}")(y))
            k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
            y = nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(tokens))
            x = x + dense(config.d_model, f"proj_{i}")(y.reshape(x.shape))
            y = norm(f"norm_2_{i}")(x)
            y = nn.silu(dense(config.d_hidden, f"gate_{i}")(y)) * dense(config.d_hidden, f"up_{i}")(y)
            x = x + dense(config.d_model, f"down_{i}")(y)
        return dense(config.vocab_size, "head")(norm("norm_f")(x))


def llama_weights(params: dict) -> dict:
    """NNX names -> Linen names."""
    named = {"wte": {"embedding": params["wte"]}, "norm_f": params["norm_f"], "head": params["head"]}
    for i, block in params["h"].items():
        layers = {"norm_1": block["norm_1"], "norm_2": block["norm_2"], **block["attn"], **block["mlp"]}
        named |= {f"{name}_{i}": layer for name, layer in layers.items()}
    return named


class LinenConvNorm(nn.Module):
    sizes: Convolution

    @nn.compact
    def __call__(self, x, train):
        c = self.sizes
        x = nn.Conv(
            c.d_out,
            (c.size, c.size),
            strides=c.stride,
            padding=c.size // 2,
            feature_group_count=c.groups,
            use_bias=False,
            name="conv",
        )(x)
        return nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)


class LinenBlock(nn.Module):
    sizes: BlockSizes

    @nn.compact
    def __call__(self, x, train):
        y = x
        for i, c in enumerate(self.sizes.convolutions):
            y = LinenConvNorm(c, name=f"convs_{i}")(nn.relu(y) if i else y, train)
        if self.sizes.shortcut:
            x = LinenConvNorm(self.sizes.shortcut, name="shortcut")(x, train)
        return nn.relu(y + x)


class LinenResNet(nn.Module):
    config: ResNetConfig

    @nn.compact
    def __call__(self, images, train):
        x = nn.relu(LinenConvNorm(self.config.stem, name="stem")(images, train))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for i, block in enumerate(self.config.blocks):
            x = LinenBlock(block, name=f"blocks_{i}")(x, train)
        return nn.Dense(self.config.n_classes, name="head")(x.mean((1, 2)))


def resnet_variables(variables: dict, name: str = "") -> dict:
    """NNX names -> Linen names: a list's items are named after the list."""
    named: dict[str, Any] = {}
    for key, value in variables.items():
        if isinstance(value, dict):
            value = resnet_variables(value, str(key))
        if isinstance(key, int):
            named[f"{name}_{key}"] = value
        elif key in ("convs", "blocks"):
            named |= value
        else:
            named[key] = value
    return named


class LinenLSTM(nn.Module):
    config: LSTMConfig

    @nn.compact
    def __call__(self, tokens):
        config = self.config
        cell = nn.OptimizedLSTMCell if config.cell == "lstm" else nn.GRUCell
        x = nn.Embed(config.vocab_size, config.d_model, name="wte")(tokens)
        for i in range(config.n_layer):
            x = nn.RNN(cell(config.d_model, name=f"cell_{i}"))(x)
        return nn.Dense(config.vocab_size, use_bias=False, name="head")(x)


def lstm_weights(params: dict, cell: str) -> dict:
    """NNX names -> Linen names: one dense layer for each gate."""
    named = {"wte": {"embedding": params["wte"]}, "head": params["head"]}
    gates = "ifgo" if cell == "lstm" else "rzn"
    for i, layer in params["layers"].items():
        split = {name: jnp.split(layer[name], len(gates), axis=-1) for name in ("kernel", "recurrent", "bias")}
        dense = {}
        for g, kernel, recurrent, bias in zip(gates, split["kernel"], split["recurrent"], split["bias"], strict=True):
            on_state = {"bias": bias} if cell == "lstm" else {"bias": layer["recurrent_bias"]} if g == "n" else {}
            on_inputs = {} if cell == "lstm" else {"bias": bias}
            dense |= {f"i{g}": {"kernel": kernel, **on_inputs}, f"h{g}": {"kernel": recurrent, **on_state}}
        named[f"cell_{i}"] = dense
    return named


def linen_image_loss(model, batch, train: bool) -> jax.Array:
    return classification_loss(lambda images: model(images, train), batch)
