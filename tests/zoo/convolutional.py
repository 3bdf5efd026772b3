"""Residual networks with batch statistics, and convolutions with strides, in groups and transposed.

The reference for batch statistics is one device that sees the whole batch: jzero synchronises them.
"""

import jax
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case, floats

C = 24


class Residual(nnx.Module):
    def __init__(self, rngs, stride):
        bias = {"use_bias": False, "rngs": rngs}
        self.conv_1 = nnx.Conv(C, 2 * C, (3, 3), strides=stride, **bias)
        self.conv_2 = nnx.Conv(2 * C, C, (3, 3), feature_group_count=2, **bias)
        self.shortcut = nnx.Conv(C, C, (1, 1), strides=stride, **bias)
        self.norm_1, self.norm_2 = nnx.BatchNorm(2 * C, rngs=rngs), nnx.BatchNorm(C, rngs=rngs)

    def __call__(self, x):
        y = self.norm_2(self.conv_2(jax.nn.relu(self.norm_1(self.conv_1(x)))))
        return jax.nn.relu(y + self.shortcut(x))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, C, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Residual(rngs, 1), Residual(rngs, 2)])
        self.head = nnx.Linear(C, 701, rngs=rngs)  # 16824 elements

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class LinenResidual(nn.Module):
    stride: int

    @nn.compact
    def __call__(self, x):
        norm = lambda x: nn.BatchNorm(use_running_average=False)(x)
        y = nn.relu(norm(nn.Conv(2 * C, (3, 3), self.stride, use_bias=False)(x)))
        y = norm(nn.Conv(C, (3, 3), feature_group_count=2, use_bias=False)(y))
        return nn.relu(y + nn.Conv(C, (1, 1), self.stride, use_bias=False)(x))


class LinenResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(C, (3, 3))(x)
        for stride in (1, 2):
            x = LinenResidual(stride)(x)
        return nn.Dense(701)(x.mean((1, 2)))


class Autoencoder(nnx.Module):
    """Down by strides, dilated, depthwise, up by transposed convolutions."""

    def __init__(self, rngs):
        self.down = nnx.Conv(3, 40, (5, 5), strides=2, rngs=rngs)
        self.dilated = nnx.Conv(40, 47, (3, 3), kernel_dilation=2, rngs=rngs)  # 16920 elements
        self.depthwise = nnx.Conv(47, 94, (3, 3), feature_group_count=47, rngs=rngs)
        self.up = nnx.ConvTranspose(94, 40, (3, 3), strides=2, rngs=rngs)
        self.out = nnx.ConvTranspose(40, 3, (5, 5), transpose_kernel=True, rngs=rngs)

    def __call__(self, x):
        x = self.depthwise(jax.nn.silu(self.dilated(jax.nn.silu(self.down(x)))))
        return self.out(jax.nn.silu(self.up(x)))


class LinenAutoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.silu(nn.Conv(47, (3, 3), kernel_dilation=2)(nn.silu(nn.Conv(40, (5, 5), 2)(x))))
        x = nn.Conv(94, (3, 3), feature_group_count=47)(x)
        x = nn.silu(nn.ConvTranspose(40, (3, 3), (2, 2))(x))
        return nn.ConvTranspose(3, (5, 5), transpose_kernel=True)(x)


class LinenUntied(nn.Module):
    """Convolutions whose kernels differ from place to place."""

    @nn.compact
    def __call__(self, x):
        return nn.ConvLocal(8, (3, 3), strides=2)(x)


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(8, 8, 3)}
# Each of 4 normalisations sums a mean and a mean square, forwards and backwards, of 24 or 48 channels.
STATISTICS = 2 * 2 * 2 * (24 + 48)
CASES = {
    "nnx resnet": Case(lambda rngs: ResNet(rngs), squares, BATCH, synchronised=STATISTICS, cancelling=("stem.bias",)),
    "nnx autoencoder": Case(lambda rngs: Autoencoder(rngs), squares, BATCH),
    "linen resnet": Case(LinenResNet(), squares, BATCH, synchronised=STATISTICS, cancelling=("Conv_0.bias",)),
    "linen autoencoder": Case(LinenAutoencoder(), squares, BATCH),
    "linen untied": Case(LinenUntied(), squares, BATCH),
}
