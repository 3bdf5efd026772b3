"""Decoders with layers unrolled, scanned and scanned in groups, tied or not, and vision transformers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case, floats, tokens

VOCAB, D, HEADS, LENGTH, LAYERS = 517, 33, 5, 9, 2  # an embedding of 17061 elements that 8 does not divide
QKV, HIDDEN = 40, 72


class Block(nnx.Module):
    def __init__(self, rngs):
        self.ln_1, self.ln_2 = nnx.LayerNorm(D, rngs=rngs), nnx.LayerNorm(D, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(HEADS, D, QKV, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(D, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, D, rngs=rngs)

    def __call__(self, x, mask=None):
        x = x + self.attn(self.ln_1(x), mask=mask)
        return x + self.down(jax.nn.gelu(self.up(self.ln_2(x))))


class Decoder(nnx.Module):
    """`groups`: none for layers one after the other, one size for a scan, two for a scan of scans."""

    def __init__(self, rngs, groups=(), tied=True):
        self.embed = nnx.Embed(VOCAB, D, rngs=rngs)
        self.groups = groups
        make = lambda rngs: Block(rngs)
        for n in reversed(groups):
            make = nnx.split_rngs(splits=n)(nnx.vmap(make, in_axes=(0,), out_axes=0))
        self.blocks: Any = make(rngs) if groups else nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.ln = nnx.LayerNorm(D, rngs=rngs)
        self.head = None if tied else nnx.Linear(D, VOCAB, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x, mask = self.embed(tokens), nnx.make_causal_mask(tokens, dtype=bool)
        if self.groups:
            run = lambda block, x: block(x, mask)
            for _ in self.groups:
                run = nnx.scan(run, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            x = run(self.blocks, x)
        else:
            for block in self.blocks:
                x = block(x, mask)
        x = self.ln(x)
        return self.head(x) if self.head is not None else self.embed.attend(x)


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, mask=None):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, qkv_features=QKV)(y, mask=mask)
        return x + nn.Dense(D)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x))))


class LinenScan(nn.Module):
    """Blocks, or groups of them, in a loop."""

    groups: tuple[int, ...]

    @nn.compact
    def __call__(self, x, mask):
        inner = LinenScan(self.groups[1:], name="inner") if self.groups[1:] else LinenBlock(name="inner")
        scan = nn.scan(
            lambda inner, x, _: (inner(x, mask), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.groups[0],
        )
        return scan(inner, x, None)[0]


class LinenDecoder(nn.Module):
    groups: tuple[int, ...] = ()
    tied: bool = True

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(VOCAB, D)
        x, mask = embed(tokens), nn.make_causal_mask(tokens, dtype=bool)
        if self.groups:
            x = LinenScan(self.groups, name="blocks")(x, mask)
        else:
            for _ in range(LAYERS):
                x = LinenBlock()(x, mask)
        x = nn.LayerNorm()(x)
        return embed.attend(x) if self.tied else nn.Dense(VOCAB, use_bias=False)(x)


class ViT(nnx.Module):
    def __init__(self, rngs):
        self.patch = nnx.Conv(3, D, (4, 4), strides=(4, 4), rngs=rngs)
        self.cls = nnx.Param(jnp.zeros((1, 1, D), jnp.float32))
        self.position = nnx.Param(jax.random.normal(rngs.params(), (10, D)) * 0.1)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.ln, self.head = nnx.LayerNorm(D, rngs=rngs), nnx.Linear(D, 521, rngs=rngs)

    def __call__(self, images):
        x = self.patch(images).reshape(images.shape[0], 9, D)
        x = jnp.concatenate([jnp.broadcast_to(self.cls[...], (x.shape[0], 1, D)), x], axis=1) + self.position[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x)[:, 0])


class LinenViT(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(D, (4, 4), strides=(4, 4))(images).reshape(images.shape[0], 9, D)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, D), jnp.float32)
        position = self.param("position", nn.initializers.normal(0.1), (10, D), jnp.float32)
        x = jnp.concatenate([jnp.broadcast_to(cls, (x.shape[0], 1, D)), x], axis=1) + position
        for _ in range(2):
            x = LinenBlock()(x)
        return nn.Dense(521)(nn.LayerNorm()(x)[:, 0])


def next_token(model, batch):
    logits = model(batch["tokens"][:, :-1])
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["tokens"][:, 1:, None], -1).mean()


def classified(model, batch):
    return -jnp.take_along_axis(jax.nn.log_softmax(model(batch["x"])), batch["label"], -1).mean()


TEXT = {"tokens": tokens(LENGTH, VOCAB)}
IMAGES = {"x": floats(12, 12, 3), "label": tokens(1, 521)}
# A key's bias moves all scores of a query alike, which a softmax does not see.
KEY = ("key.bias",)
TIED = {"embedding": 2}  # once as a table and once as the output layer


def decoder(model, *, tied=True, full=False):
    return Case(model, next_token, TEXT, uses=TIED if tied else {}, cancelling=KEY, full=full)


CASES = {
    "nnx decoder": decoder(lambda rngs: Decoder(rngs)),
    "nnx decoder, scanned": decoder(lambda rngs: Decoder(rngs, (LAYERS,), tied=False), tied=False, full=True),
    "nnx decoder, scan of scans": decoder(lambda rngs: Decoder(rngs, (2, 2))),
    "nnx vit": Case(lambda rngs: ViT(rngs), classified, IMAGES, cancelling=KEY, full=True),
    "linen decoder": decoder(LinenDecoder(), full=True),
    "linen decoder, scanned": decoder(LinenDecoder((LAYERS,), tied=False), tied=False),
    "linen decoder, scan of scans": decoder(LinenDecoder((2, 2)), full=True),
    "linen vit": Case(LinenViT(), classified, IMAGES, cancelling=KEY),
}
