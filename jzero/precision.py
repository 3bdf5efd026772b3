"""Which dtype each thing has: master parameters, the copy that computes, and gradients on the wire and at rest."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jzero.config import Config

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


@dataclass(frozen=True)
class Precision:
    """The dtypes of a training run.

    Attributes:
        compute: dtype of parameters and floating inputs inside the loss, or None in fp32 runs, where each leaf keeps
            its own.
        reduce: dtype in which gradients are summed over the mesh. They are accumulated in fp32 whatever this is.
    """

    compute: Any
    reduce: Any

    def master(self, x: jax.Array) -> jax.Array:
        """The lasting form of a parameter: fp32 if it computes in 16 bits."""
        return x.astype(jnp.float32) if self.compute and jnp.issubdtype(x.dtype, jnp.floating) else x

    def casts(self, dtype: Any) -> tuple[Any, ...]:
        """The casts that a leaf of this lasting dtype passes through on its way into the loss."""
        return (jnp.dtype(self.compute),) if self.compute and jnp.issubdtype(dtype, jnp.floating) else ()

    def inputs(self, tree: Any) -> Any:
        """Casts the floating leaves of what enters the loss; one fp32 input would promote the whole model to fp32."""
        if not self.compute:
            return tree
        return jax.tree.map(lambda x: x.astype(self.compute) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def precision(config: Config) -> Precision:
    """Reads the dtypes from the keys `fp16`, `bf16` and `communication_data_type`.

    Gradients are summed in fp32 unless `communication_data_type` says otherwise; DeepSpeed's default is the model's
    dtype.
    """
    return Precision(
        compute=None if config.precision == "fp32" else DTYPES[config.precision],
        reduce=DTYPES[config.communication_data_type or "fp32"],
    )
