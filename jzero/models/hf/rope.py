"""Rotary positions as published models have them: the angles' frequencies, with what stretches them for long texts."""

import dataclasses
import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Scaling: TypeAlias = Literal["default", "linear", "llama3", "yarn"]
"""How frequencies are stretched; "default" leaves them as they are."""

SCALINGS: tuple[Scaling, ...] = ("default", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class Rope:
    """What the angles of rotary positions are made of.

    Args:
        theta: base of the wavelengths.
        scaling: which rule stretches the frequencies.
        factor: by how much; of "linear", "llama3" and "yarn".
        original: tokens that the model saw before it was stretched; of "llama3" and "yarn".
        low: of "llama3", `low_freq_factor`; of "yarn", `beta_slow`.
        high: of "llama3", `high_freq_factor`; of "yarn", `beta_fast`.
        amplitude: what sines and cosines are multiplied by; only "yarn" has another than 1.
        truncate: of "yarn": whether its ramp begins and ends at whole features.

    Example:
        >>> Rope(10000.0).frequencies(4).tolist()
        [1.0, 0.009999999776482582]
        >>> Rope(10000.0, "linear", factor=2.0).frequencies(4)[0].item()
        0.5
    """

    theta: float = 10000.0
    scaling: Scaling = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    amplitude: float = 1.0
    truncate: bool = True

    def frequencies(self, d_head: int) -> np.ndarray:
        """The angle per position of each pair of features: float32 `[d_head / 2]`."""
        exponents = np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)
        plain = np.float32(1) / np.float32(self.theta) ** exponents
        if self.scaling == "linear":
            return plain / np.float32(self.factor)
        if self.scaling == "llama3":
            return self._llama3(plain)
        return self._yarn(plain, d_head) if self.scaling == "yarn" else plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Long waves are stretched, short ones left alone, those between a mixture."""
        waves = np.float32(2 * math.pi) / plain
        share = (self.original / waves - self.low) / (self.high - self.low)  # of the plain frequency
        mixed = (1 - share) * plain / self.factor + share * plain
        stretched = np.where(waves > self.original / self.low, plain / self.factor, mixed)
        return np.where(waves < self.original / self.high, plain, stretched).astype(np.float32)

    def _yarn(self, plain: np.ndarray, d_head: int) -> np.ndarray:
        """Features that turn often over the original length are left alone, those that turn rarely stretched."""
        at = lambda turns: d_head * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
        first, last = at(self.high), at(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, d_head - 1)
        ramp = np.clip((np.arange(d_head // 2, dtype=np.float32) - first) / (last - first or 0.001), 0, 1)
        return (plain / np.float32(self.factor) * ramp + plain * (1 - ramp)).astype(np.float32)


def yarn_amplitude(factor: float, mscale: float = 0, mscale_all_dim: float = 0) -> float:
    """What yarn multiplies sines and cosines by, where the configuration does not say.

    Example:
        >>> round(yarn_amplitude(4.0), 4), yarn_amplitude(1.0)
        (1.1386, 1.0)
    """
    of = lambda scale: 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
    return of(mscale) / of(mscale_all_dim) if mscale and mscale_all_dim else of(1.0)


def cos_sin(rope: Rope, d_head: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the angles: `int[..., T]` positions -> two float32 `[..., T, 1, d_head / 2]`."""
    angles = positions[..., None, None].astype(jnp.float32) * rope.frequencies(d_head)
    return jnp.cos(angles) * rope.amplitude, jnp.sin(angles) * rope.amplitude


def turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns each pair of features, `i` and `i + d_head / 2`, by an angle, in float32.

    Args:
        x: queries or keys `[..., T, n_head, d_head]`.
        cos: from `cos_sin`.
        sin: from `cos_sin`.

    Returns:
        The same shape and dtype.

    Example:
        >>> turn(jnp.array([[[1.0, 0.0]]]), jnp.zeros((1, 1, 1)), jnp.ones((1, 1, 1))).tolist()
        [[[0.0, 1.0]]]
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
