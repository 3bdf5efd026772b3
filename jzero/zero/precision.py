"""Which dtype each thing has: parameters kept and in compute, gradients summed and accumulated, moments.

The update itself is always computed in fp32: what lasts in 16 bits is widened for it and rounded once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from jzero.base.types import Batch, Casts, ModelState, Params, PyTree
from jzero.config import ResolvedConfig
from jzero.errors import ConfigError
from jzero.sharding.placement import path_name

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


@dataclass(frozen=True)
class Precision:
    """The dtypes of a training run.

    Attributes:
        compute: dtype of parameters and floating inputs inside the loss, or None in fp32 runs, where each leaf keeps
            its own.
        reduce: dtype in which gradients are summed over the mesh.
        accumulate: dtype in which they are added up over micro-batches.
        param_dtype: dtype in which parameters that compute in 16 bits are kept between steps.
        moments: dtype of the parameters that the optimizer's state is made like, where they compute in 16 bits.
        buffers: dtype of the model's state, such as BatchNorm statistics; None leaves it as the model has it.
        kept: patterns of names of parameters that last and compute in fp32 all the same, and of leaves of the batch, as
            "batch.x", that enter the loss as they are.
        targets: names of leaves of the batch that only the loss sees, which enter as they are too.
    """

    compute: DTypeLike | None
    reduce: DTypeLike
    accumulate: DTypeLike
    param_dtype: DTypeLike
    moments: DTypeLike
    buffers: DTypeLike | None
    kept: tuple[str, ...]
    targets: tuple[str, ...] = ()

    def master_params(self, params: Params) -> Params:
        """Parameters as they are kept between steps; see `param_dtype`."""
        return self._each(params, lambda x, kept: x.astype(jnp.float32 if kept else self.param_dtype))

    def casts(self, params: Params) -> Casts:
        """The casts that each parameter passes through on its way into the loss: a pytree of tuples of dtypes."""
        return self._each(params, lambda _, kept: () if kept else (jnp.dtype(self.compute),), otherwise=lambda _: ())

    def computed(self, master_params: Params) -> Params:
        """What the loss sees of parameters that are whole."""
        return self._each(master_params, lambda x, kept: x if kept else x.astype(self.compute))

    def optimized(self, master_params: Params) -> Params:
        """What the optimizer's state is made like."""
        return self._each(master_params, lambda x, kept: x if kept else x.astype(self.moments))

    def grad_params(self, master_params: Params) -> Params:
        """What gradients are taken of. A sum over devices does not fit fp16 where the mean it becomes does."""
        return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float16 else x, master_params)

    def state(self, model_state: ModelState) -> ModelState:
        """The model's state as it is kept between steps."""
        return model_state if self.buffers is None else _cast(model_state, self.buffers)

    def inputs(self, batch: Batch) -> Batch:
        """Casts the floating leaves that the model sees; one in fp32 would promote the whole model to fp32."""
        if self.compute is None:
            return batch
        rounded = set(self.rounded(batch))
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x.astype(self.compute) if batch_name(path) in rounded else x, batch
        )

    def rounded(self, batch: Batch) -> list[str]:
        """The names of the batch's leaves that `inputs` rounds, such as "batch.x"."""
        leaves = jax.tree_util.tree_leaves_with_path(batch)
        names = {batch_name(path): x.dtype for path, x in leaves if jnp.issubdtype(x.dtype, jnp.floating)}
        if self.compute is None:
            return []
        wide = [name for name, dtype in names.items() if dtype != self.compute]
        kept = lambda name: name in self.targets or any(re.search(pattern, name) for pattern in self.kept)
        return [name for name in wide if not kept(name)]

    def check(self, params: Params, batch: Batch) -> None:
        """Refuses a pattern that fits neither a parameter nor a leaf of the batch.

        Raises:
            ConfigError: with the pattern and some of the names there are.
        """
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        of_batch = [batch_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
        for pattern in self.kept:
            if not any(re.search(pattern, name) for name in (*names, *of_batch)):
                listed = lambda names: f"{', '.join(names[:5])}{', …' * (len(names) > 5)}"
                raise ConfigError(
                    f"`jzero.keep_fp32`: {pattern!r} fits no parameter and no leaf of the batch; "
                    f"the model has {listed(names)}, the batch {listed(of_batch)}."
                )

    def _each(
        self,
        params: Params,
        form: Callable[[jax.Array, bool], PyTree],
        otherwise: Callable[[jax.Array], PyTree] = lambda x: x,
    ) -> PyTree:
        """Maps over parameters: those that compute in 16 bits, or would if their names did not keep them from it."""

        def one(path: KeyPath, x: jax.Array) -> PyTree:
            if self.compute is None or not jnp.issubdtype(x.dtype, jnp.floating):
                return otherwise(x)
            return form(x, any(re.search(pattern, path_name(path)) for pattern in self.kept))

        return jax.tree_util.tree_map_with_path(one, params)


def batch_name(path: KeyPath) -> str:
    """The name of a leaf of the batch, such as "batch.x"."""
    return ".".join(filter(None, ("batch", path_name(path))))


def _cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def precision_of(config: ResolvedConfig) -> Precision:
    """Reads the dtypes from the keys `fp16`, `bf16`, `data_types`, `communication_data_type` and `jzero.keep_fp32`.

    Gradients are summed and accumulated in fp32 unless a key says otherwise; DeepSpeed's default is the model's dtype.

    Example:
        >>> from jzero.config import Config
        >>> config = Config.load({"train_batch_size": 1, "bf16": {"enabled": True}})
        >>> dtypes = precision_of(config.resolve(world=1))
        >>> dtypes.compute.dtype.name, dtypes.param_dtype.dtype.name, dtypes.accumulate.dtype.name
        ('bfloat16', 'float32', 'float32')
    """
    chosen = config.precision
    own = {"fp16": config.fp16.fp16_master_weights_and_grads, "bf16": config.bf16.bf16_master_weights_and_grads}
    param_dtype = chosen if own.get(chosen) else "fp32"
    types = config.data_types
    return Precision(
        compute=None if chosen == "fp32" else DTYPES[chosen],
        reduce=DTYPES[config.communication_data_type or "fp32"],
        accumulate=DTYPES[types.grad_accum_dtype or param_dtype],
        param_dtype=DTYPES[param_dtype],
        moments=DTYPES[param_dtype if chosen == "bf16" and config.bf16.bf16_optimizer_states else "fp32"],
        buffers=DTYPES[types.buffer_dtype] if types.buffer_dtype else None,
        kept=config.jzero.keep_fp32,
    )
