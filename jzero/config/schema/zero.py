"""`zero_optimization`: the stage, and the many keys of DeepSpeed's buckets and hooks.

Sizes are counts of elements. As in DeepSpeed, the stage-3 keys may be written with and without their `stage3_` prefix.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from jzero.base.types import Json
from jzero.config.schema.scalars import (
    LARGEST_32,
    Anything,
    Count,
    Fraction,
    Positive,
    Stage,
    Switch,
    Text,
    Texts,
    choice,
    whole,
)
from jzero.config.schema.section import Mapped, Section
from jzero.config.schema.verdicts import honoured, no_effect, refused, translated

_DEPRECATED = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_params": "offload_param",
}
_PREFIXED = (
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_module_granularity_threshold",
    "stage3_use_all_reduce_for_fetch_params",
    "stage3_allgather_sequential",
)

Device = Annotated[str, choice("none", "cpu", "nvme")]

_BUCKETS = "XLA combines gradients up to reduce_bucket_size"
_UNQUANTISED = "parameters are gathered in the compute dtype, unquantised"
_NO_FILES = "parameters live in host memory, not in files"
_PIPELINED = "`nvme`: it always reads ahead and writes behind, within `buffer_count` sub-groups"


class OffloadParam(Section):
    """`zero_optimization.offload_param`."""

    device: Device = honoured(
        "none",
        "stage 3: frozen parameters live in host memory, trained ones too where `offload_optimizer` moves them, beside "
        "an optimizer on NVMe as they compute; each use fetches its own, and gradients go to the host. `nvme` stands "
        "for host memory: a compiled step reaches no files",
    )
    nvme_path: Text | None = no_effect(None, _NO_FILES)
    buffer_count: Count = no_effect(5, _NO_FILES)
    buffer_size: Count = no_effect(100_000_000, _NO_FILES)
    max_in_cpu: Count = no_effect(1_000_000_000, _NO_FILES)
    pin_memory: Switch = no_effect(True, "JAX pins the host memory that it uses")


class OffloadOptimizer(Section):
    """`zero_optimization.offload_optimizer`."""

    device: Device = honoured(
        "none",
        "where the master copy and the moments live: `cpu`, stages 1 to 3: in host memory, and pass through the device "
        "in pieces; `nvme`, stage 3: in files, which each step reads, updates on the CPU, and writes",
    )
    nvme_path: Text | None = honoured(
        None,
        "`nvme`: a folder on a disk of each host, for one run; it takes twice the state, so that a step is applied "
        "wholly or not at all",
    )
    buffer_count: Count = translated(4, "`nvme`: sub-groups in memory, read, updated or written; at least one")
    pin_memory: Switch = no_effect(True, "JAX pins the host memory that it uses")
    pipeline_read: Switch = no_effect(False, _PIPELINED)
    pipeline_write: Switch = no_effect(False, _PIPELINED)
    pipeline: Switch = no_effect(False, _PIPELINED)
    fast_init: Switch = no_effect(False, "`nvme`: new state is made and written in chunks as it is")
    ratio: Fraction = honoured(1.0, "the share of the parameters whose state is offloaded, the largest first")
    super_offload: Switch = no_effect(False, "it schedules the offloaded update, and gives the same numbers")
    cpuadam_cores_perc: Fraction = no_effect(0.8, "`cpu`: the update runs on the devices; `nvme`: on XLA's threads")


class Zenflow(Section):
    """`zero_optimization.zenflow`."""

    topk_ratio: Fraction = 0.1
    select_strategy: Text = "auto"
    select_interval: Anything = "auto"
    update_interval: Anything = "auto"
    overlap_step: Switch = False
    offload: Switch = False
    auto_ratio: Fraction = 0.99
    full_warm_up_rounds: Count = 0
    pt_reserved_cores_perc: Fraction = 0.5
    steps_per_epoch: Anything = None


class LeafModule(Section):
    """`zero_optimization.leaf_module`."""

    classes: Texts = ()
    names: Texts = ()
    name_suffixes: Texts = ()


class Loco(Section):
    """`zero_optimization.zeropp_loco_param`."""

    err_beta: Fraction = 0.8
    reset_T: Positive = 1024


class ZeroConfig(Section):
    """`zero_optimization`."""

    stage: Stage = honoured(
        0,
        '1 shards optimizer state and master copy, 2 also gradients, 3 also parameters; `"auto"` is the fastest that '
        "fits, by the closed form of jzero.plan",
    )
    stage3_param_persistence_threshold: Count = honoured(100_000, "stage 3: smaller leaves stay replicated")
    stage3_prefetch_bucket_size: Count = honoured(
        50_000_000, "stage 3: elements that may be gathered ahead of their use"
    )
    stage3_max_live_parameters: Count = honoured(
        1_000_000_000, "stage 3: elements of gathered parameters that may be alive"
    )
    stage3_max_reuse_distance: Count = honoured(
        1_000_000_000, "stage 3: a gathered parameter used again within this many elements is kept"
    )
    reduce_bucket_size: Positive | None = translated(
        None,
        "elements that XLA reduces in one collective; 32 MiB of them when not given, because DeepSpeed's default, 5e8, "
        "would hold the fp32 gradients of whole layers at once",
    )
    allgather_bucket_size: Positive | None = translated(
        None, "stages 1 and 2: elements that XLA gathers in one collective; 32 MiB of them when not given"
    )

    contiguous_gradients: Switch = no_effect(True, "XLA lays out the gradients")
    reduce_scatter: Switch = no_effect(
        True, "stages 1 to 3 always scatter what they reduce; false lets 1 and 2 divide gradients first, on request"
    )
    use_multi_rank_bucket_allreduce: Switch = no_effect(True, _BUCKETS)
    allgather_partitions: Switch = no_effect(True, "sharded parameters are always gathered in one collective")
    overlap_comm: Switch | None = translated(
        None,
        "collectives run beside the products of other layers, for more memory; on at stage 3 unless given",
    )
    load_from_fp32_weights: Switch = no_effect(True, "checkpoints hold the fp32 master copy")
    elastic_checkpoint: Switch = no_effect(False, "a checkpoint holds whole arrays")
    sub_group_size: Count = honoured(
        1_000_000_000, "offloading: elements of a parameter that the update has on a device at once, up to 2^24"
    )
    stage3_model_persistence_threshold: Count = no_effect(2**63 - 1, "stage3_param_persistence_threshold alone decides")
    stage3_gather_16bit_weights_on_model_save: Switch = no_effect(False, "a checkpoint holds whole arrays")
    stage3_module_granularity_threshold: Count = no_effect(0, "parameters are gathered where they are used")
    stage3_use_all_reduce_for_fetch_params: Switch = no_effect(False, "parameters are fetched by all-gathers")
    stage3_allgather_sequential: Switch = no_effect(False, "XLA orders the gathers")
    ignore_unused_parameters: Switch = no_effect(True, "the gradient of an unused parameter is zero")
    round_robin_gradients: Switch = no_effect(False, "every device holds a part of every gradient")
    memory_efficient_linear: Switch = no_effect(
        True, "the compiled program fixes when a parameter is gathered and dropped"
    )
    pipeline_loading_checkpoint: Switch = no_effect(False, "each device reads its own shards")
    override_module_apply: Switch = no_effect(True, "modules are initialised sharded under jit")
    log_trace_cache_warnings: Switch = no_effect(False, "there is no trace cache")
    enable_sanity_checks: Switch = no_effect(False, "shapes and placements are checked when the step is compiled")
    save_muon_momentum_buffer_in_memory: Switch = no_effect(False, "momentum lies where the stage puts all state")
    leaf_module: LeafModule | None = no_effect(None, "parameters are gathered where they are used")

    cpu_offload_use_pin_memory: Switch | None = no_effect(None, "DeepSpeed no longer reads it; JAX pins what it uses")
    offload_param: OffloadParam | None = honoured(None)
    offload_optimizer: OffloadOptimizer | None = honoured(None)
    mics_shard_size: Annotated[int, whole(-1, LARGEST_32)] = translated(
        -1, "stage 3: devices that share one copy of the state, the `shard` axis of the mesh that jzero makes"
    )
    zero_hpz_partition_size: Count = translated(
        1,
        "stage 3, above 1: devices of a group, such as a node's: the state is divided over all devices, but parameters "
        "and gradients cross groups once a step and not in every micro-batch; DeepSpeed's scatters still do",
    )
    zero_quantized_weights: Switch = no_effect(False, _UNQUANTISED)
    zero_quantized_nontrainable_weights: Switch = no_effect(False, _UNQUANTISED)
    zero_quantized_gradients: Switch = no_effect(
        False, "gradients travel unquantised; communication_data_type makes them smaller"
    )
    zeropp_loco_param: Loco | None = no_effect(None, "gradients travel unquantised")
    mics_hierarchical_params_gather: Switch = no_effect(False, "each shard group gathers in one collective")
    zenflow: Zenflow | None = no_effect(None, "every update waits for all of its gradients, which ZenFlow approximates")
    legacy_stage1: Switch = refused(False, "DeepSpeed removed it; stage 1 is the one implementation")

    aliases: ClassVar[Mapping[str, str]] = {
        **{name.removeprefix("stage3_"): name for name in _PREFIXED},
        "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
        "gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    }
    synonyms: ClassVar[Mapping[str, str]] = _DEPRECATED
    deprecated: ClassVar[frozenset[str]] = frozenset(
        {"stage3_gather_fp16_weights_on_model_save", "gather_fp16_weights_on_model_save"}
    )

    @property
    def shard_group(self) -> int | None:
        """How many devices share one copy of the state, if `mics_shard_size` says so; None for all of them."""
        return self.mics_shard_size if self.stage == 3 and self.mics_shard_size > 0 else None

    @property
    def hpz_group(self) -> int | None:
        """How many devices form a group of two levels, if `zero_hpz_partition_size` says so."""
        return self.zero_hpz_partition_size if self.stage == 3 and self.zero_hpz_partition_size > 1 else None

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the stage has state to offload, and `offload_optimizer` says to."""
        return self.stage != 0 and self.offload_optimizer is not None and self.offload_optimizer.device != "none"

    @property
    def swaps_optimizer(self) -> bool:
        """Whether it says to offload to files."""
        return self.stage == 3 and self.offload_optimizer is not None and self.offload_optimizer.device == "nvme"

    @property
    def offloads_params(self) -> bool:
        """The same of `offload_param`."""
        return self.stage == 3 and self.offload_param is not None and self.offload_param.device != "none"

    @property
    def overlaps_comm(self) -> bool:
        """`overlap_comm`; when the file leaves it open, as DeepSpeed has it: at stage 3 only."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """NVMe is for the optimizer at stage 3, as a whole; groups have at least one device, and one meaning."""
        stage, optimizer = (values.get(name) for name in ("stage", "offload_optimizer"))
        if optimizer and optimizer.device == "nvme" and stage:
            if stage != 3:
                yield "offload_optimizer.device", "= 'nvme' is refused: it is for stage 3, as in DeepSpeed; use \"cpu\""
            elif not optimizer.nvme_path:
                yield "offload_optimizer.nvme_path", "is missing: with `device` = 'nvme' it names a folder on a disk"
            elif optimizer.ratio != 1:
                yield (
                    "offload_optimizer.ratio",
                    f"= {optimizer.ratio} is refused with `device` = 'nvme', where a share on the devices would be "
                    'written in every step too; remove it, or use "cpu"',
                )
        group = values.get("mics_shard_size", -1)
        if isinstance(group, int) and group != -1 and group < 1:
            yield "mics_shard_size", f"must be a number of devices, or -1 for all, got {group}"
        hpz = values.get("zero_hpz_partition_size", 1)
        if stage == 3 and isinstance(group, int) and isinstance(hpz, int) and group > 0 and hpz > 1:
            yield (
                "zero_hpz_partition_size",
                f"= {hpz} is refused with `mics_shard_size` = {group}: the one divides the state over all devices, the "
                "other copies it in every group; keep one of them",
            )

    @classmethod
    def modernise(cls, data: dict[str, Json]) -> Iterator[Mapped]:
        """`cpu_offload` and its like became sections."""
        for name, section in _DEPRECATED.items():
            if name not in data or data.get(section) is not None:
                continue  # both together are an error, in DeepSpeed too
            value = data[name]
            if isinstance(value, Mapping) and name == "cpu_offload_param":  # which could be a section
                data[section] = data.pop(name)
                yield Mapped(section, value, name, value)
            elif value in (True, "true", False, "false", "auto"):
                device = "cpu" if data.pop(name) in (True, "true") else "none"
                data[section] = {"device": device}
                yield Mapped(f"{section}.device", device, name, value)
