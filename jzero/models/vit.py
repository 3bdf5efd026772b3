"""A vision transformer in Flax NNX: patches and a class token through the GPT's blocks, without their mask.

It computes in the dtype of the parameters it holds when called, images included; only logits are float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.errors import ModelError
from jzero.models.blocks import make_blocks, run_blocks
from jzero.models.checks import check_attention, check_blocks, check_dropout, check_multiple, check_sizes
from jzero.models.layers import Block, Head, LayerNorm
from jzero.ops.request import Implementation

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The sizes and the form of a vision transformer.

    Args:
        image_size: height and width of the images.
        patch_size: height and width of a patch; must divide `image_size`.
        n_classes: number of labels.
        d_model: width of the residual stream; the feed-forward layer is four times as wide.
        n_layer: number of blocks.
        n_head: attention heads; must divide `d_model`.
        n_channels: of the images.
        scan_layers: stack the blocks' parameters into `[n_layer, ...]` leaves and run them under `jax.lax.scan`.
        remat: recompute each block in the backward pass instead of keeping its activations. True recomputes
            everything; a string names one of `jax.checkpoint_policies`.
        dropout: rate after the embedding and after both halves of a block; 0 needs no random stream.
        attention: which path of `jzero.attention` the blocks take; "auto" takes cuDNN's on GPUs where it can.

    Raises:
        ConfigError: if a size is not positive, sizes do not divide evenly, or the policy is unknown.

    Example:
        >>> ViTConfig(image_size=224, patch_size=16, n_classes=1000, d_model=768, n_layer=12, n_head=12).n_params
        86567656
    """

    image_size: int
    patch_size: int
    n_classes: int
    d_model: int
    n_layer: int
    n_head: int
    n_channels: int = 3
    scan_layers: bool = False
    remat: bool | str = False
    dropout: float = 0.0
    attention: Implementation = "auto"

    def __post_init__(self):
        check_sizes(self, "image_size", "patch_size", "n_classes", "d_model", "n_layer", "n_head", "n_channels")
        check_multiple(self, "image_size", "patch_size")
        check_multiple(self, "d_model", "n_head")
        check_blocks(self)
        check_dropout(self)
        check_attention(self)

    @property
    def n_patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        d = self.d_model
        embedding = self.n_channels * self.patch_size**2 * d + d + d + (self.n_patches + 1) * d
        return embedding + self.n_layer * (12 * d * d + 13 * d) + 2 * d + (d + 1) * self.n_classes


class ViT(nnx.Module):
    """The whole classifier.

    Args:
        config: sizes and form.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> config = ViTConfig(image_size=32, patch_size=8, n_classes=10, d_model=32, n_layer=2, n_head=2)
        >>> ViT(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 32, 32, 3))).shape
        (4, 10)
    """

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs):
        self.config = config
        d, patch = config.d_model, config.patch_size
        self.patches = nnx.Conv(config.n_channels, d, (patch, patch), strides=patch, padding="VALID", rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros(d, jnp.float32))
        shape = (config.n_patches + 1, d)
        self.positions = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), shape, jnp.float32))

        def block(rngs: nnx.Rngs) -> Block:
            return Block(
                d,
                config.n_head,
                causal=False,
                residual_std=0.02 / (2 * config.n_layer) ** 0.5,
                dropout=config.dropout,
                attention=config.attention,
                epsilon=EPSILON,
                rngs=rngs,
            )

        self.h = make_blocks(block, config.n_layer, scan_layers=config.scan_layers, rngs=rngs)
        self.ln_f = LayerNorm(d, EPSILON)
        self.head = Head(d, config.n_classes, 0.02, use_bias=True, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Scores the classes.

        Args:
            images: floats `[B, image_size, image_size, n_channels]`.

        Returns:
            float32 logits `[B, n_classes]`.
        """
        config = self.config
        expected = (config.image_size, config.image_size, config.n_channels)
        if images.shape[1:] != expected:
            raise ModelError(f"the images have shape {images.shape[1:]}; the model is made for {expected}.")
        token = self.class_token[...]
        x = self.patches(images.astype(token.dtype))  # [B, rows, columns, d]
        x = x.reshape(x.shape[0], config.n_patches, config.d_model)
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, config.d_model)), x], axis=1)
        x = self.dropout(x + self.positions[...])  # [B, n_patches + 1, d]
        x = run_blocks(self.h, x, scan_layers=config.scan_layers, remat=config.remat)
        return self.head(self.ln_f(x[:, 0]))
