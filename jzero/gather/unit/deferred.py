"""A parameter that compute has not asked for yet: which one it is, and what to replay on the full value.

It holds no arrays: the same description serves to plan a program and to run it. A parameter that is replicated
is deferred too, so that all stages run the same way; using it moves nothing.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jzero.jaxpr import Equation, bind
from jzero.jaxpr.params import new_dtype
from jzero.jaxpr.primitives import is_cast, rearranges, stops_gradient
from jzero.sharding.collectives import GradReduceConfig, gather_leaf, label, scatter_leaf
from jzero.sharding.host_memory import to_device
from jzero.sharding.placement import Placement


class ParamShards(NamedTuple):
    """The arrays of one parameter on this device.

    Attributes:
        shard: this device's part of the lasting parameter; what gradients are taken of.
        whole: the parameter gathered in advance, in compute dtype; None to gather at every use.
        ready: the shard as it is sent, cast in advance; None to cast at every use.
    """

    shard: jax.Array | None
    whole: jax.Array | None = None
    ready: jax.Array | None = None

    @property
    def payload(self) -> jax.Array:
        """What is gathered."""
        return cast(jax.Array, self.shard if self.ready is None else self.ready)


@dataclass(frozen=True)
class DeferredParam:
    """A full value that a use of it gathers, and whose gradient is scattered as soon as that use has produced it.

    Attributes:
        leaf: the parameter's index in flattening order.
        name: its dotted name.
        placement: how it lies over the mesh.
        dtype: its lasting dtype.
        casts: dtypes the shard passes through before it is sent; the last one is what is gathered.
        in_advance: whether it was gathered before, so that only its gradient is sent.
        trainable: whether a gradient is wanted.
        on_host: whether it lives in host memory, to be fetched at each use; its gradient goes there too.
        ready: the dtype to which it was cast in advance, if it was.
        replay: equations to apply, in order, to the gathered array.
    """

    leaf: int
    name: str
    placement: Placement
    dtype: DTypeLike
    casts: tuple[DTypeLike, ...] = ()
    in_advance: bool = False
    trainable: bool = True
    on_host: bool = False
    ready: DTypeLike | None = None
    replay: tuple[Equation, ...] = ()

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds all of it, so that its gradient stays the device's own."""
        return self.placement.dim is None

    @property
    def gather_key(self) -> "DeferredParam":
        """What is gathered for it, before anything is replayed; equal for all that can share one gather."""
        return replace(self, replay=(), trainable=True)

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the gathered parameter, before anything is replayed."""
        return jax.ShapeDtypeStruct(self.placement.shape, self.casts[-1] if self.casts else self.dtype)

    @property
    def layer(self) -> "DeferredParam":
        """What one iteration of a `scan` over dimension 0 sees."""
        assert self.placement.dim != 0, "the layout never divides a scanned dimension"
        return replace(self, placement=self.placement.layer)

    def follow(self, eqn: Equation) -> "DeferredParam | None":
        """The value after one more equation, still deferred, or None if that equation needs the full array."""
        if is_cast(eqn):
            return self._cast(eqn)
        if stops_gradient(eqn):
            return replace(self, trainable=False, replay=(*self.replay, eqn))
        if rearranges(eqn):  # replayed on the full value, and no use of it
            return replace(self, replay=(*self.replay, eqn))
        return None

    def _cast(self, eqn: Equation) -> "DeferredParam":
        # A cast commutes with every rearrangement, so a narrowing one moves before the gather: fewer bytes to send.
        new, now = jnp.dtype(new_dtype(eqn)), self.shape.dtype
        floats = jnp.issubdtype(new, jnp.floating) and jnp.issubdtype(now, jnp.floating)
        widened = any(is_cast(e) for e in self.replay)
        if floats and not self.in_advance and not widened and new.itemsize <= now.itemsize:
            return replace(self, casts=(*self.casts, new))
        return replace(self, replay=(*self.replay, eqn))

    def gathered(self, parts: ParamShards, use: str = "") -> jax.Array:
        """The gathered parameter from its arrays, for a named use; differentiable only where it is whole."""
        if parts.whole is not None:
            return parts.whole
        with label("gather", self.name, use):
            return gather_leaf(to_device(parts.payload), self.placement, self.casts)

    def scattered(self, grad: jax.Array, grad_reduce: GradReduceConfig, use: str = "") -> jax.Array:
        """Sums the gradient of the gathered parameter over the mesh; each device keeps its shard, as it lasts."""
        with label("scatter", self.name, use):
            return scatter_leaf(grad, self.placement, grad_reduce).astype(self.dtype)

    def replayed(self, full: jax.Array) -> jax.Array:
        """Applies the recorded equations to the gathered parameter."""
        for eqn in self.replay:
            (full,) = bind(eqn, [full])
        return full
