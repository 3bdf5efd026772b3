"""A parameter that has not been gathered yet: a shard, and what to replay on the full value once it is."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from jzero import compat
from jzero.collectives import Wire, gather
from jzero.layout import Placement

REPLAYABLE = frozenset(
    {"reshape", "transpose", "squeeze", "broadcast_in_dim", "slice", "copy", "copy_p", "rev", "name"}
)
"""Primitives of one operand that only rearrange a parameter: replayed after the gather instead of being a use of it."""


@dataclass(frozen=True)
class Lazy:
    """A full value that exists only as a shard.

    Attributes:
        shard: this device's part of the lasting parameter, in its lasting dtype.
        placement: how the parameter lies over the mesh.
        wire: dtypes of the gather and of the gradient's scatter.
        casts: dtypes the shard passes through before it travels; the last one is what is gathered.
        replay: equations to apply, in order, to the gathered array.
        trainable: whether a gradient is wanted.
    """

    shard: jax.Array
    placement: Placement
    wire: Wire
    casts: tuple[Any, ...] = ()
    replay: tuple[Any, ...] = ()
    trainable: bool = True

    @property
    def wire_dtype(self) -> Any:
        """The dtype in which the parameter is gathered."""
        return self.casts[-1] if self.casts else self.shard.dtype

    def follow(self, eqn: Any) -> "Lazy | None":
        """The value after one more equation, still lazy, or None if that equation needs the full array."""
        if eqn.primitive.name == "convert_element_type":
            return self._cast(eqn)
        if eqn.primitive.name in REPLAYABLE and len(eqn.invars) == 1:
            return replace(self, replay=(*self.replay, eqn))
        return None

    def _cast(self, eqn: Any) -> "Lazy":
        # A cast commutes with every rearrangement, so a narrowing one moves in front of the gather: fewer bytes travel.
        new = jnp.dtype(eqn.params["new_dtype"])
        floats = jnp.issubdtype(new, jnp.floating) and jnp.issubdtype(self.wire_dtype, jnp.floating)
        widened = any(e.primitive.name == "convert_element_type" for e in self.replay)
        if floats and not widened and new.itemsize <= jnp.dtype(self.wire_dtype).itemsize:
            return replace(self, casts=(*self.casts, new))
        return replace(self, replay=(*self.replay, eqn))

    def replayed(self, full: jax.Array) -> jax.Array:
        """Applies the recorded equations to the gathered array."""
        for eqn in self.replay:
            (full,) = compat.bind(eqn, [full])
        return full

    def full(self) -> jax.Array:
        """Gathers differentiably and replays: the value itself, alive until the backward pass has used it."""
        return self.replayed(gather(self.shard, self.placement, self.wire, self.casts))

    def unreplayed(self) -> "Lazy":
        """The parameter itself, before anything was replayed."""
        return replace(self, replay=())

    def with_shard(self, shard: jax.Array) -> "Lazy":
        """The same value with another array standing for its shard."""
        return replace(self, shard=shard)

    def scan_slice(self, shard: jax.Array) -> "Lazy":
        """What one iteration of a `scan` over dimension 0 sees, given its slice of the shard."""
        p = self.placement
        assert p.dim, "the layout never divides a scanned dimension"
        return replace(self, shard=shard, placement=Placement(p.shape[1:], p.dim - 1, p.n_shards))
