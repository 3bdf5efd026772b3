"""Which keys a query sees: the one rule that every path of attention follows."""

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Rule(NamedTuple):
    """What is known of visibility before the program runs.

    Attributes:
        causal: a query sees no key at a later position.
        window: a query sees keys at most `window - 1` positions away; None for all.
        length: of a row of keys; what stands behind it is padding, and nobody sees it.
    """

    causal: bool
    window: int | None
    length: int


class Places(NamedTuple):
    """Where the tokens of rows stand, for queries or for keys.

    Attributes:
        positions: `int32[B, T]` or `int32[1, T]`, the place in a document.
        segments: `int32[B, T]`, which document of the row it is; None where a row is one document.
        indices: `int32[T]`, the place in the row, padding included.
    """

    positions: jax.Array
    segments: jax.Array | None
    indices: jax.Array

    def block(self, start: jax.Array | int, size: int) -> "Places":
        """The places of `size` tokens from `start` on."""
        part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=-1)
        segments = None if self.segments is None else part(self.segments)
        return Places(part(self.positions), segments, part(self.indices))

    def padded(self, n: int) -> "Places":
        """With `n` tokens more in each row, which `Rule.length` hides."""
        pad = lambda x: jnp.pad(x, ((0, 0), (0, n)))
        segments = None if self.segments is None else pad(self.segments)
        return Places(pad(self.positions), segments, jnp.arange(self.indices.size + n, dtype=jnp.int32))


def share_visible(rule: Rule, n_queries: int) -> Fraction:
    """Which part of all pairs of a query and a key the rule shows, where tokens stand at their places in the row.

    Example:
        >>> share_visible(Rule(True, None, 4), 4), share_visible(Rule(True, 2, 4), 4)
        (Fraction(5, 8), Fraction(7, 16))
    """
    i, n_keys = np.arange(n_queries, dtype=np.int64), rule.length
    first = np.zeros_like(i) if rule.window is None else np.maximum(i - rule.window + 1, 0)
    last = i if rule.causal else np.full_like(i, n_keys - 1) if rule.window is None else i + rule.window - 1
    n_seen = np.maximum(np.minimum(last, n_keys - 1) - first + 1, 0).sum()
    return Fraction(int(n_seen), n_queries * n_keys)


def visible(rule: Rule, queries: Places, keys: Places) -> jax.Array | None:
    """Whether each query sees each key.

    Returns:
        `bool[B or 1, T, S]`; None if everything sees everything.

    Example:
        >>> places = Places(jnp.arange(3)[None], None, jnp.arange(3))
        >>> visible(Rule(True, 2, 3), places, places)[0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    seen = []
    distance = queries.positions[:, :, None] - keys.positions[:, None, :]
    if rule.causal:
        seen.append(distance >= 0)
    if rule.window is not None:
        seen.append((distance if rule.causal else jnp.abs(distance)) < rule.window)
    if queries.segments is not None and keys.segments is not None:
        seen.append(queries.segments[:, :, None] == keys.segments[:, None, :])
    if keys.indices.size and rule.length % keys.indices.size:
        seen.append((keys.indices < rule.length)[None, None, :])
    if not seen:
        return None
    all_of_them = seen[0]
    for one in seen[1:]:
        all_of_them &= one
    return all_of_them


def block_pairs(
    rule: Rule, n_blocks: tuple[int, int], sizes: tuple[int, int], *, in_order: bool
) -> list[tuple[int, int]]:
    """The blocks of queries and of keys that may see each other.

    Args:
        rule: what is known.
        n_blocks: of queries and of keys.
        sizes: tokens in a block of queries and in one of keys.
        in_order: whether the position of a token is its place in the row, at least within its document, so that
            blocks behind or far from one another need not be looked at.

    Example:
        >>> block_pairs(Rule(True, None, 8), (2, 2), (4, 4), in_order=True)
        [(0, 0), (1, 0), (1, 1)]
    """

    def may_see(i: int, j: int) -> bool:
        first_query, last_query = i * sizes[0], (i + 1) * sizes[0] - 1
        first_key, last_key = j * sizes[1], (j + 1) * sizes[1] - 1
        if rule.causal and first_key > last_query:
            return False
        return rule.window is None or max(first_query - last_key, first_key - last_query) < rule.window

    pairs = [(i, j) for i in range(n_blocks[0]) for j in range(n_blocks[1])]
    return [pair for pair in pairs if not in_order or may_see(*pair)]
