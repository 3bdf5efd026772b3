"""What pytrees hold, by name, for annotations: JAX has no type that says more."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

PyTree: TypeAlias = Any
"""Any nesting of dicts, lists, tuples and registered classes."""


class TreeDef(Protocol):
    """The structure of a pytree, as `jax.tree.structure` gives it."""

    @property
    def num_leaves(self) -> int:
        """How many leaves it has."""
        ...

    def unflatten(self, leaves: Iterable[object]) -> PyTree:
        """The pytree of these leaves."""
        ...


Params: TypeAlias = PyTree
"""Parameters, or something of each of them."""

Grads: TypeAlias = PyTree
"""Gradients of trainable parameters; None where a parameter is frozen."""

OptState: TypeAlias = PyTree
"""The state of an optax transformation."""

ModelState: TypeAlias = PyTree
"""What a model carries besides parameters, such as BatchNorm statistics."""

Batch: TypeAlias = PyTree
"""Arrays whose leading dimension counts rows."""

Placements: TypeAlias = PyTree
"""A `jzero.sharding.placement.Placement` for each leaf of something."""

Mask: TypeAlias = PyTree
"""A bool for each leaf of something."""

Casts: TypeAlias = PyTree
"""For each parameter, a tuple of the dtypes that it passes through on its way into the loss."""

Json: TypeAlias = Any
"""What a JSON file holds."""

Device: TypeAlias = Any
"""A `jax.Device`, a class that JAX ships without types."""

Metrics: TypeAlias = dict[str, Any]
"""Scalars by name, on the devices."""

LossFn: TypeAlias = Callable[..., Any]
"""A user's `loss_fn(model, batch)`; see `jzero.initialize`."""
