"""What a third-party model is to `third_party.py`: where it comes from, how it is built, what had to be changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS = 16  # two for each of 8 devices


@dataclass(frozen=True)
class Package:
    """Something that pip can get.

    Attributes:
        requirement: what is installed, with its version; empty for the examples of the Flax that runs.
        beside: what its models import and would not find.
        why_no_deps: why its own dependencies are not installed, in words that follow "because"; empty if they are.
    """

    requirement: str
    beside: tuple[str, ...] = ()
    why_no_deps: str = ""

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.requirement.replace("==", " ") or "Flax's examples"


@dataclass(frozen=True)
class Built:
    """A model as `jzero.initialize` takes it.

    Attributes:
        model: the model.
        loss_fn: its loss.
        batch: `ROWS` rows of random data.
        axis: the axis that it names for the devices that share a batch, as models for `jax.pmap` do.
    """

    model: Any
    loss_fn: Callable
    batch: Any
    axis: str | None = None


@dataclass(frozen=True)
class ThirdParty:
    """One row of the table.

    Attributes:
        name: what `--models` calls it.
        package: name of one of the packages.
        build: makes the model, small and with random weights; it imports the package, so only the environment can.
        changed: what had to be changed in model or loss, compared with the way that its own documentation trains it.
    """

    name: str
    package: str
    build: Callable[[], Built]
    changed: str


def tokens(length: int, vocab: int = 96, seed: int = 0) -> np.ndarray:
    """Random tokens; 0, 1 and 2, which models give a meaning of their own, are not among them."""
    return np.random.default_rng(seed).integers(3, vocab, (ROWS, length), np.int32)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal((ROWS, *shape), np.float32)


def labels(classes: int = 10) -> np.ndarray:
    """A class for each row."""
    return np.random.default_rng(1).integers(0, classes, ROWS, np.int32)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean over all targets, as optax has it."""
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def next_token(logits: Any, ids: Any) -> Any:
    """The loss of a causal language model."""
    return cross_entropy(logits[:, :-1], ids[:, 1:])
