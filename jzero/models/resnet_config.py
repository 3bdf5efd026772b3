"""The sizes of a ResNet, down to each of its convolutions."""

import dataclasses
from typing import NamedTuple

from jzero.errors import ConfigError
from jzero.models.checks import check_choice, check_sizes

BASIC = {6: (1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""Depths whose blocks have two 3x3 convolutions, and the number of blocks in each stage; 6 is for trials."""

BOTTLENECK = {8: (1, 1), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Depths whose blocks have a 3x3 convolution between two 1x1 ones, the last four times as wide; 8 is for trials."""


class Convolution(NamedTuple):
    """One convolution: channels in and out, height and width of the kernel, stride and groups."""

    d_in: int
    d_out: int
    size: int
    stride: int = 1
    groups: int = 1

    @property
    def n_params(self) -> int:
        """Parameters of the kernel and of the normalisation that follows."""
        return self.size**2 * self.d_in // self.groups * self.d_out + 2 * self.d_out


class BlockSizes(NamedTuple):
    """One residual block: its convolutions, and the one beside them where the block changes the shape."""

    convolutions: tuple[Convolution, ...]
    shortcut: Convolution | None


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a ResNet (v1.5: the 3x3 convolution of a bottleneck has the stride) or ResNeXt.

    Args:
        depth: 6, 18 or 34 with basic blocks; 8, 50, 101 or 152 with bottlenecks.
        n_classes: number of labels.
        n_channels: of the images.
        width: channels of the first stage; each later stage has twice as many.
        groups: groups of a bottleneck's 3x3 convolution; more than one makes a ResNeXt.
        width_per_group: channels of such a group in the first stage; `width` if None. ResNeXt-50 32x4d has 32 groups
            of 4.

    Raises:
        ConfigError: for an unknown depth, a size that is not positive, and groups in basic blocks.

    Example:
        >>> ResNetConfig(depth=50, n_classes=1000).n_params
        25557032
        >>> ResNetConfig(depth=50, n_classes=1000, groups=32, width_per_group=4).n_params
        25028904
    """

    depth: int
    n_classes: int
    n_channels: int = 3
    width: int = 64
    groups: int = 1
    width_per_group: int | None = None

    def __post_init__(self):
        check_choice(self, "depth", sorted(BASIC | BOTTLENECK))
        check_sizes(self, "n_classes", "n_channels", "width", "groups")
        if self.width_per_group is not None:
            check_sizes(self, "width_per_group")
        if self.depth in BASIC and (self.groups, self.width_per_group) != (1, None):
            raise ConfigError(
                f"model.groups and model.width_per_group divide bottlenecks; a ResNet-{self.depth} has none, "
                f"choose one of the depths {', '.join(map(str, BOTTLENECK))}."
            )

    @property
    def stem(self) -> Convolution:
        """The first convolution."""
        return Convolution(self.n_channels, self.width, 7, 2)

    @property
    def blocks(self) -> list[BlockSizes]:
        """The residual blocks of all stages, in order."""
        basic = self.depth in BASIC
        blocks, d_in = [], self.width
        for stage, n_blocks in enumerate(BASIC[self.depth] if basic else BOTTLENECK[self.depth]):
            d_out = self.width * 2**stage * (1 if basic else 4)
            inner = self.groups * (self.width_per_group or self.width) * 2**stage
            for i in range(n_blocks):
                stride = 2 if stage and not i else 1
                if basic:
                    convolutions = (Convolution(d_in, d_out, 3, stride), Convolution(d_out, d_out, 3))
                else:
                    convolutions = (
                        Convolution(d_in, inner, 1),
                        Convolution(inner, inner, 3, stride, self.groups),
                        Convolution(inner, d_out, 1),
                    )
                changes = stride != 1 or d_in != d_out
                blocks.append(BlockSizes(convolutions, Convolution(d_in, d_out, 1, stride) if changes else None))
                d_in = d_out
        return blocks

    @property
    def d_out(self) -> int:
        """Channels of the last stage."""
        return self.blocks[-1].convolutions[-1].d_out

    @property
    def n_params(self) -> int:
        """Number of parameters; running statistics are none."""
        layers = [self.stem]
        for block in self.blocks:
            layers += [*block.convolutions, *([block.shortcut] if block.shortcut else [])]
        return sum(layer.n_params for layer in layers) + (self.d_out + 1) * self.n_classes
