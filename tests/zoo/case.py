"""What a model of the zoo is: the model, its loss, a batch, and what makes it differ from the plain rules."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS = 16  # two for each of 8 devices


@dataclass(frozen=True)
class Case:
    """One model of the zoo. Leaves are named by the end of their dotted name.

    Attributes:
        model: as `jzero.initialize` takes it.
        loss_fn: likewise.
        batch: likewise, `ROWS` rows.
        trainable: likewise.
        uses: how many operations take a leaf directly in one evaluation of the loss, where that is not 1: its gradient
            is scattered as often, and it is gathered at most twice as often.
        forward_uses: how many further operations take a leaf, but give it no gradient: more gathers, no scatters.
        cancelling: leaves whose gradient is 0 but for rounding, such as a bias in front of a normalisation; rounding is
            then measured against the largest gradient of the model.
        per_device: the loss is no mean over rows, or its gradient no mean of theirs, so the reference is the mean over
            the gradients that each device takes of its own rows.
        tensor: the size of the mesh's `tensor` axis.
        rtol: how far gradients may be off, relative to the largest entry of the leaf.
        synchronised: elements that the model itself sums over devices, such as batch statistics.
        full: whether `make test-full` alone runs it, because others stand for what is in it.
    """

    model: Any
    loss_fn: Callable
    batch: Any
    trainable: Callable[[str], bool] | type | None = None
    uses: Mapping[str, int] = field(default_factory=dict)
    forward_uses: Mapping[str, int] = field(default_factory=dict)
    cancelling: tuple[str, ...] = ()
    per_device: bool = False
    tensor: int = 1
    rtol: float = 1e-5
    synchronised: int = 0
    full: bool = False


@dataclass(frozen=True)
class Pure:
    """A model without Flax: a function that makes the parameters."""

    make: Callable

    def init(self, key: Any, batch: Any) -> Any:
        """What `jzero.initialize` asks of such a model."""
        return self.make(key)


def ends_with(name: str, ends: Iterable[str]) -> str | None:
    """Which of some ends, in whole parts, a dotted name has."""
    return next((end for end in ends if f".{name}".endswith(f".{end}")), None)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers for `ROWS` rows."""
    return np.random.default_rng(seed).standard_normal((ROWS, *shape), np.float32)


def tokens(length: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Random tokens for `ROWS` rows."""
    return np.random.default_rng(seed).integers(0, vocab, (ROWS, length), np.int32)
