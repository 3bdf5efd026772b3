"""Which parameters are updated alike, and the compiled update of a stretch of such parameters.

The update runs on the host, where its state is: only gradients and new parameters in the compute dtype pass over PCIe.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from jzero.base.types import Device
from jzero.errors import ConfigError
from jzero.jaxpr import Subprogram
from jzero.jaxpr.elementwise import run_on_pieces
from jzero.offload.host.update import Leaf, Plan


@dataclass(frozen=True)
class Kind:
    """Parameters with the same update.

    Attributes:
        program: the update of one of them.
        reads: for each input of the program, its place among gradient, moments and parameter, or None for a scalar.
        scalars: the numbers of those scalars among the operands of the whole update.
        grads: dtype in which the update takes gradients.
        dtypes: of what lasts in files: the moments and the parameter.
        casts: dtypes through which the parameter goes to the one that computes.
    """

    program: Subprogram
    reads: tuple[int | None, ...]
    scalars: tuple[int, ...]
    grads: np.dtype
    dtypes: tuple[np.dtype, ...]
    casts: tuple[np.dtype, ...]

    @property
    def computes(self) -> np.dtype:
        """The dtype in which the parameter goes to the devices."""
        return self.casts[-1] if self.casts else self.dtypes[-1]

    def arrives(self, grad_dtype: DTypeLike) -> np.dtype:
        """The dtype in which a gradient comes, where real ones come as `grad_dtype`."""
        return self.grads if np.issubdtype(self.grads, np.complexfloating) else np.dtype(grad_dtype)


def sort_kinds(
    plan: Plan, operands: Sequence[jax.ShapeDtypeStruct], casts: Sequence[Sequence[DTypeLike]]
) -> tuple[list[Kind], list[int]]:
    """Finds the kinds of a plan's parameters.

    Args:
        plan: an update, taken apart.
        operands: abstract gradients, optimizer state, parameters and loss, flat.
        casts: for each leaf of the plan, from its lasting to its compute dtype.

    Returns:
        The kinds, and the kind of each leaf.

    Raises:
        ConfigError: an update that is not elementwise.
    """
    kinds: dict[tuple[Hashable, ...], Kind] = {}
    members: list[tuple[Hashable, ...]] = []
    for leaf, cast in zip(plan.leaves, casts, strict=True):
        if not leaf.in_pieces:
            raise ConfigError(
                f"the optimizer's update of {leaf.name} needs the whole parameter, and with "
                "zero_optimization.offload_optimizer.device nvme it sees pieces; use an optimizer that works element "
                "by element, such as AdamW, or set the device to cpu."
            )
        dtypes = tuple(np.dtype(operands[i].dtype) for i in leaf.inputs[1:])
        reads = tuple(leaf.inputs.index(i) if i in leaf.inputs else None for i in leaf.reads)
        scalars = tuple(i for i in leaf.reads if i not in leaf.inputs)
        grads = np.dtype(operands[leaf.inputs[0]].dtype)
        kind = Kind(leaf.program, reads, scalars, grads, dtypes, tuple(np.dtype(dtype) for dtype in cast))
        key = (_text(leaf, operands), *vars(replace(kind, program=None)).values())
        kinds.setdefault(key, kind)
        members.append(key)
    order = list(kinds)
    return list(kinds.values()), [order.index(key) for key in members]


def _text(leaf: Leaf, operands: Sequence[jax.ShapeDtypeStruct]) -> str:
    """The program as it reads for pieces, constants included; the same for parameters of different shapes."""
    length = 8
    abstract = [
        jax.ShapeDtypeStruct((length,) if i in leaf.inputs else operands[i].shape, operands[i].dtype)
        for i in leaf.reads
    ]
    traced = jax.make_jaxpr(lambda *xs: run_on_pieces(leaf.program, xs, (length,)))(*abstract)
    return f"{traced} {[np.asarray(const).tolist() for const in traced.consts]}"


def compile_update(
    kind: Kind, size: int, grad_dtype: DTypeLike, scalars: Sequence[jax.ShapeDtypeStruct], *, divides: bool
) -> Callable:
    """Compiles the update of a stretch of parameters for the host.

    Args:
        kind: of the parameters.
        size: elements.
        grad_dtype: of real gradients.
        scalars: abstract, in the order of `kind.scalars`.
        divides: whether gradients are divided by anything.

    Returns:
        `update(gradient, [moments..., parameter], scalars, divisor) -> ([moments..., parameter], computing parameter)`
        on vectors; the gradient is divided by `divisor`, f32[] or None, before the optimizer sees it.
    """

    def update(
        grad: jax.Array, olds: list[jax.Array], scalars: list[jax.Array], divisor: jax.Array | None
    ) -> tuple[list[jax.Array], jax.Array]:
        grad = grad.astype(kind.grads)
        grad = grad if divisor is None else grad / divisor.astype(kind.grads)
        own, others = [grad, *olds], iter(scalars)
        news = run_on_pieces(kind.program, [next(others) if i is None else own[i] for i in kind.reads], (size,))
        computes = news[-1]
        for dtype in kind.casts:
            computes = computes.astype(dtype)
        return news, computes

    here = SingleDeviceSharding(host_device())
    vector = lambda dtype: jax.ShapeDtypeStruct((size,), dtype, sharding=here)
    scalar = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
    abstract = [scalar(x) for x in scalars]
    divisor = jax.ShapeDtypeStruct((), np.float32, sharding=here) if divides else None
    grad, olds = vector(kind.arrives(grad_dtype)), [vector(dtype) for dtype in kind.dtypes]
    return jax.jit(update).lower(grad, olds, abstract, divisor).compile()


def host_device() -> Device:
    """The device that JAX makes of this process's CPU cores.

    Raises:
        ConfigError: JAX was told to leave them alone.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "with zero_optimization.offload_optimizer.device nvme the optimizer runs on the CPU, which JAX was told to "
            "leave alone; add it to the environment variable JAX_PLATFORMS, as in cuda,cpu."
        ) from error
