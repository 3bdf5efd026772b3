"""Has batch normalisation take its statistics over the whole batch, as on one device, wherever Flax runs it.

NNX modules are changed when they are made; Linen modules live for one call, and are changed when that begins. Flax's
bridge puts modules of either kind into the other, so that both ways are open in both.
"""

from collections.abc import Callable

from flax import linen as nn
from flax import nnx
from flax.nnx import bridge

from jzero.base.types import PyTree
from jzero.sharding.mesh import DATA_AXES


def follow_the_engine(module: nnx.Module) -> None:
    """Undoes what two NNX layers settle when they are made, before they know how they will be trained."""
    for _, part in nnx.iter_modules(module):
        if isinstance(part, nnx.BatchNorm) and part.axis_name is None:
            # Several axes work, though the annotation knows only one.
            part.axis_name = DATA_AXES  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(part, nnx.Embed) and part.dtype == part.param_dtype:
            part.dtype = None  # the dtype of the parameters at hand, as in every other layer; not the fp32 master's


def synchronise_linen(
    next_method: Callable, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], context: nn.module.InterceptorContext
) -> PyTree:
    """For `flax.linen.intercept_methods`: a BatchNorm that names no axis, and NNX modules inside of Linen ones.

    Copies of Flax's BatchNorm that packages have of their own are known by its field and its collection.
    """
    module = context.module
    if context.method_name == "__call__" and _names_no_axis(module):
        object.__setattr__(module, "axis_name", DATA_AXES)  # Linen modules are frozen; this one lives for one call
    if context.method_name == "__call__" and isinstance(module, bridge.ToLinen):
        object.__setattr__(module, "nnx_class", _following(module.nnx_class))
    return next_method(*args, **kwargs)


def _names_no_axis(module: nn.Module) -> bool:
    return getattr(module, "axis_name", "") is None and (
        isinstance(module, nn.BatchNorm) or "batch_stats" in module.variables
    )


def _following(make: Callable[..., nnx.Module]) -> Callable[..., nnx.Module]:
    def made(*args: PyTree, **kwargs: PyTree) -> nnx.Module:
        module = make(*args, **kwargs)
        follow_the_engine(module)
        return module

    return made
