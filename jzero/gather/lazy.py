"""A parameter that compute has not asked for yet: where it comes from, and what to replay on the full value.

A parameter that is whole on every device is lazy too, so that all stages run the same way; using it moves nothing.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from jzero import compat
from jzero.collectives import Wire, gather, gather_leaf, scatter_leaf
from jzero.layout import Placement

REPLAYABLE = frozenset(
    {"reshape", "transpose", "squeeze", "broadcast_in_dim", "slice", "copy", "copy_p", "rev", "name"}
)
"""Primitives of one operand that only rearrange a parameter: replayed on the full value, and no use of it."""

Parts = tuple[jax.Array, jax.Array | None]
"""The arrays of a lazy value: its shard, and the whole if that was gathered in advance."""


@dataclass(frozen=True)
class Lazy:
    """A full value that a use of it gathers, and whose gradient is scattered as soon as that use has produced it.

    Attributes:
        shard: this device's part of the lasting parameter, in its lasting dtype; what gradients are taken of.
        placement: how the parameter lies over the mesh.
        wire: how gradients travel.
        casts: dtypes the shard passes through before it travels; the last one is what is gathered.
        whole: the parameter gathered in advance, in compute dtype; None to gather at every use.
        replay: equations to apply, in order, to the gathered array.
        trainable: whether a gradient is wanted.
    """

    shard: jax.Array
    placement: Placement
    wire: Wire
    casts: tuple[Any, ...] = ()
    whole: jax.Array | None = None
    replay: tuple[Any, ...] = ()
    trainable: bool = True

    @property
    def parts(self) -> Parts:
        """The arrays in it, as a pytree to pass through transformations."""
        return self.shard, self.whole

    def with_parts(self, parts: Parts) -> "Lazy":
        """The same value with other arrays standing for its own."""
        return replace(self, shard=parts[0], whole=parts[1])

    @property
    def gathered_shape(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the full parameter, before anything is replayed."""
        if self.whole is not None:
            return jax.ShapeDtypeStruct(self.whole.shape, self.whole.dtype)
        return jax.ShapeDtypeStruct(self.placement.shape, self.casts[-1] if self.casts else self.shard.dtype)

    def follow(self, eqn: Any) -> "Lazy | None":
        """The value after one more equation, still lazy, or None if that equation needs the full array."""
        if eqn.primitive.name == "convert_element_type":
            return self._cast(eqn)
        if eqn.primitive.name in REPLAYABLE and len(eqn.invars) == 1:
            return replace(self, replay=(*self.replay, eqn))
        return None

    def _cast(self, eqn: Any) -> "Lazy":
        # A cast commutes with every rearrangement, so a narrowing one moves in front of the gather: fewer bytes travel.
        new, now = jnp.dtype(eqn.params["new_dtype"]), self.gathered_shape.dtype
        floats = jnp.issubdtype(new, jnp.floating) and jnp.issubdtype(now, jnp.floating)
        widened = any(e.primitive.name == "convert_element_type" for e in self.replay)
        if self.whole is None and floats and not widened and new.itemsize <= now.itemsize:
            return replace(self, casts=(*self.casts, new))
        return replace(self, replay=(*self.replay, eqn))

    def gathered(self, parts: Parts) -> jax.Array:
        """The full parameter from its arrays, without a derivative of its own."""
        shard, whole = parts
        return gather_leaf(shard, self.placement, self.casts) if whole is None else whole

    def scattered(self, grad: jax.Array) -> jax.Array:
        """Sums the gradient of the full parameter over the mesh; this device keeps its shard, in the lasting dtype."""
        return scatter_leaf(grad, self.placement, self.wire).astype(self.shard.dtype)

    def replayed(self, full: jax.Array) -> jax.Array:
        """Applies the recorded equations to the full parameter."""
        for eqn in self.replay:
            (full,) = compat.bind(eqn, [full])
        return full

    def full(self) -> jax.Array:
        """The value itself, differentiable, alive until the backward pass has used it."""
        if self.placement.dim is None:
            return self.replayed(gather_leaf(self.shard, self.placement, self.casts))
        return self.replayed(gather(self.shard, self.placement, self.wire, self.casts, self.whole))

    def unreplayed(self) -> "Lazy":
        """The parameter itself, before anything was replayed."""
        return replace(self, replay=())

    def scan_slice(self, parts: Parts) -> "Lazy":
        """What one iteration of a `scan` over dimension 0 sees, given its slices of the arrays."""
        assert self.placement.dim != 0, "the layout never divides a scanned dimension"
        return replace(self.with_parts(parts), placement=self.placement.layer)
