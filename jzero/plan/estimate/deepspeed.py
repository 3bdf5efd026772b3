"""DeepSpeed's own memory estimates for ZeRO-2 and ZeRO-3, for those who come with its figures in mind.

They are its formulas, with what they leave out: activations, the buffers of collectives, every stage but two and every
optimizer but Adam in mixed precision. What jzero itself will hold, `jzero.plan.compile_step` tells.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import jax
from rich.table import Table

from jzero.base.types import Params
from jzero.base.units import format_bytes
from jzero.errors import ConfigError

_ON_GPU = 18
"""Bytes a parameter that a shard holds: the 16-bit and the fp32 gradient, the fp32 copy and Adam's two moments."""


@dataclass(frozen=True)
class DeepSpeedOption:
    """One line of DeepSpeed's table.

    Attributes:
        offload_optimizer: `zero_optimization.offload_optimizer.device` is cpu.
        offload_param: `zero_optimization.offload_param.device` is cpu; always false at stage 2.
        zero_init: the model is made under `deepspeed.zero.Init`, so that no process holds it whole; None at stage 2.
        cpu_bytes: host memory of one node.
        gpu_bytes: memory of one GPU.
    """

    offload_optimizer: bool
    offload_param: bool
    zero_init: bool | None
    cpu_bytes: int
    gpu_bytes: int

    @property
    def name(self) -> str:
        """The option as DeepSpeed prints it."""
        device = lambda offloaded: "cpu" if offloaded else "none"
        text = f"offload_optimizer={device(self.offload_optimizer)}"
        if self.zero_init is None:
            return text
        return f"offload_param={device(self.offload_param)}, {text}, zero_init={int(self.zero_init)}"


@dataclass(frozen=True)
class DeepSpeedEstimate:
    """DeepSpeed's table for one stage.

    Attributes:
        stage: 2 or 3.
        n_params: parameters of the model.
        largest_layer: those of the module that has most of its own; None at stage 2, which does not need it.
        gpus_per_node: GPUs of a node.
        nodes: nodes.
        options: what DeepSpeed lists, in its order.
    """

    stage: int
    n_params: int
    largest_layer: int | None
    gpus_per_node: int
    nodes: int
    options: tuple[DeepSpeedOption, ...]

    def table(self) -> Table:
        """The same as a rich table: decimal units, and beside them what DeepSpeed prints, which are GiB."""
        layer = "" if self.largest_layer is None else f", largest layer {self.largest_layer:,}"
        table = Table(
            title=f"DeepSpeed's estimate for ZeRO-{self.stage}, {self.nodes} x {self.gpus_per_node} GPUs",
            caption=f"{self.n_params:,} parameters{layer}; without activations and buffers",
        )
        table.add_column("options")
        for heading in ("a node's CPU", "each GPU", "DeepSpeed prints"):
            table.add_column(heading, justify="right")
        for option in self.options:
            cpu, gpu = option.cpu_bytes, option.gpu_bytes
            prints = f"{cpu / 2**30:.2f}GB | {gpu / 2**30:.2f}GB"
            table.add_row(option.name, format_bytes(cpu), format_bytes(gpu), prints)
        return table


def deepspeed_estimate(
    params: Params | int,
    *,
    stage: Literal[2, 3],
    largest_layer: int | None = None,
    gpus_per_node: int = 1,
    nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> DeepSpeedEstimate:
    """What DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_...` say of a model.

    They leave out activations, the buckets of collectives, parameters gathered ahead and fragmentation, know no stage 0
    or 1 and no optimizer but Adam. ZeRO-2's host memory is that of all GPUs of all nodes, though each node is said to
    need it.

    Args:
        params: the parameters, a pytree of arrays or `jax.ShapeDtypeStruct`s, or how many they are.
        stage: 2 or 3.
        largest_layer: stage 3: parameters of the module that has most of its own. Taken from the pytree when not given,
            where layers stacked for a loop count as one.
        gpus_per_node: GPUs of a node.
        nodes: nodes.
        additional_buffer_factor: DeepSpeed's safety factor on host memory.

    Returns:
        Bytes for each choice of offloading.

    Raises:
        ConfigError: a stage without a formula, a size that is not positive, or a largest layer that is missing or
            larger than the model.

    Example:
        >>> estimate = deepspeed_estimate(2_851_000_000, stage=2, gpus_per_node=8)
        >>> [(option.name, f"{option.gpu_bytes / 2**30:.2f}") for option in estimate.options]
        [('offload_optimizer=cpu', '5.31'), ('offload_optimizer=none', '11.28')]
    """
    sizes = {"gpus_per_node": gpus_per_node, "nodes": nodes, "additional_buffer_factor": additional_buffer_factor}
    if wrong := [f"{name} is {size}" for name, size in sizes.items() if size <= 0]:
        raise ConfigError(f"deepspeed_estimate: {' and '.join(wrong)}, but must be positive.")
    if stage not in (2, 3):
        raise ConfigError(f"deepspeed_estimate: DeepSpeed has no estimate for stage {stage!r}, only for 2 and 3.")
    n_params = params if isinstance(params, int) else sum(math.prod(x.shape) for x in jax.tree.leaves(params))
    if stage == 2:
        options, largest_layer = _zero2(n_params, gpus_per_node, nodes, additional_buffer_factor), None
    else:
        if largest_layer is None:
            if isinstance(params, int):
                raise ConfigError(
                    "deepspeed_estimate: at stage 3 give largest_layer too, the parameters of the module that has most "
                    "of its own."
                )
            largest_layer = _largest_layer(params)
        if not 0 < largest_layer <= n_params:
            raise ConfigError(f"deepspeed_estimate: largest_layer is {largest_layer} of {n_params} parameters.")
        options = _zero3(n_params, largest_layer, gpus_per_node, nodes, additional_buffer_factor)
    return DeepSpeedEstimate(stage, n_params, largest_layer, gpus_per_node, nodes, tuple(options))


def _zero2(n_params: int, gpus_per_node: int, nodes: int, factor: float) -> list[DeepSpeedOption]:
    n_gpus = gpus_per_node * nodes
    on_cpu = DeepSpeedOption(True, False, None, int(n_params * max(4 * n_gpus, 16) * factor), 2 * n_params)
    on_gpu = 2 * n_params + int(_ON_GPU * n_params / n_gpus)
    return [on_cpu, DeepSpeedOption(False, False, None, int(n_params * 4 * gpus_per_node * factor), on_gpu)]


def _zero3(n_params: int, largest: int, gpus_per_node: int, nodes: int, factor: float) -> list[DeepSpeedOption]:
    n_gpus, layer = gpus_per_node * nodes, 4 * largest  # the largest layer in 16 bits, twice

    def option(optimizer: bool, param: bool, zero_init: bool) -> DeepSpeedOption:
        divided = _ON_GPU if param else 16 if optimizer else 0  # bytes a parameter that nodes share in host memory
        while_made = 4 * (largest if zero_init and not optimizer else n_params) * gpus_per_node
        lasting = divided * n_params / nodes
        host = lasting if zero_init and optimizer else max(while_made, lasting)
        on_gpu = 0 if param else 2 if optimizer else _ON_GPU
        return DeepSpeedOption(optimizer, param, zero_init, int(host * factor), layer + int(on_gpu * n_params / n_gpus))

    offloads = ((True, True), (True, False), (False, False))
    return [option(*offload, zero_init) for offload in offloads for zero_init in (True, False)]


def _largest_layer(params: Params) -> int:
    """Parameters of the module that has most of its own: those under one path but for its last part."""
    own: dict[tuple[object, ...], int] = defaultdict(int)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        own[path[:-1]] += math.prod(leaf.shape)
    return max(own.values(), default=0)
