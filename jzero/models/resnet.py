"""A ResNet (v1.5) or ResNeXt in Flax NNX, with batch normalisation over all devices.

It computes in the dtype of the parameters it holds when called, images included. Statistics, their running averages and
the logits are float32.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models.layers import BatchNorm, Head
from jzero.models.resnet_config import BlockSizes, Convolution, ResNetConfig


class ConvNorm(nnx.Module):
    """A convolution without bias, and the normalisation that follows."""

    def __init__(self, sizes: Convolution, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(
            sizes.d_in,
            sizes.d_out,
            (sizes.size, sizes.size),
            strides=sizes.stride,
            padding=sizes.size // 2,
            feature_group_count=sizes.groups,
            use_bias=False,
            kernel_init=nnx.initializers.variance_scaling(2.0, "fan_out", "normal"),
            rngs=rngs,
        )
        self.norm = BatchNorm(sizes.d_out, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class ResidualBlock(nnx.Module):
    """Convolutions beside a shortcut, which is a convolution too where the block changes the shape."""

    def __init__(self, sizes: BlockSizes, *, rngs: nnx.Rngs):
        self.convs = nnx.List([ConvNorm(c, rngs=rngs) for c in sizes.convolutions])
        self.shortcut = ConvNorm(sizes.shortcut, rngs=rngs) if sizes.shortcut else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        for conv in self.convs[:-1]:
            y = jax.nn.relu(conv(y))
        return jax.nn.relu(self.convs[-1](y) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nnx.Module):
    """The whole classifier.

    Args:
        config: sizes.
        rngs: the stream `params`.

    Example:
        >>> config = ResNetConfig(depth=50, n_classes=1000)
        >>> nnx.eval_shape(lambda: ResNet(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 224, 224, 3)))).shape
        (4, 1000)
    """

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.stem = ConvNorm(config.stem, rngs=rngs)
        self.blocks = nnx.List([ResidualBlock(sizes, rngs=rngs) for sizes in config.blocks])
        self.head = Head(config.d_out, config.n_classes, config.d_out**-0.5, use_bias=True, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Scores the classes; in training mode the running statistics move.

        Args:
            images: floats `[B, H, W, n_channels]`.

        Returns:
            float32 logits `[B, n_classes]`.
        """
        dtype = self.head.kernel[...].dtype
        x = jax.nn.relu(self.stem(images.astype(dtype)))  # [B, H / 2, W / 2, width]
        padding = ((1, 1), (1, 1))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=padding)  # pyright: ignore[reportArgumentType]
        for block in self.blocks:
            x = block(x)
        return self.head(x.astype(jnp.float32).mean(axis=(1, 2)).astype(dtype))
