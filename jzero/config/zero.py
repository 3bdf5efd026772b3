"""`zero_optimization`: the stage, and the many keys of DeepSpeed's buckets and hooks.

Sizes are counts of elements. As in DeepSpeed, the stage-3 keys may be written with and without their `stage3_` prefix.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from jzero.config.scalars import Anything, Count, Fraction, Positive, Stage, Switch, Text, Texts, Whole, choice
from jzero.config.section import Section
from jzero.config.verdicts import honoured, no_effect, refused, translated

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
_UNQUANTISED = "this version gathers in the compute dtype; remove the key"
_ON_DEVICE = 'this version keeps all state on the devices; use "none", and more devices or stage 3 to save memory'


class OffloadParam(Section):
    """`zero_optimization.offload_param`."""

    device: Device = honoured("none", "without effect below stage 3, refused at stage 3 unless none")
    nvme_path: Text | None = no_effect(None, "nothing is kept on NVMe")
    buffer_count: Count = no_effect(5, "nothing is kept on NVMe")
    buffer_size: Count = no_effect(100_000_000, "nothing is kept on NVMe")
    max_in_cpu: Count = no_effect(1_000_000_000, "nothing is kept on NVMe")
    pin_memory: Switch = no_effect(True, "JAX pins the host memory that it uses")


class OffloadOptimizer(Section):
    """`zero_optimization.offload_optimizer`."""

    device: Device = honoured("none", "without effect at stage 0, refused at the others unless none")
    nvme_path: Text | None = no_effect(None, "nothing is kept on NVMe")
    buffer_count: Count = no_effect(4, "nothing is kept on NVMe")
    pin_memory: Switch = no_effect(True, "JAX pins the host memory that it uses")
    pipeline_read: Switch = no_effect(False, "nothing is kept on NVMe")
    pipeline_write: Switch = no_effect(False, "nothing is kept on NVMe")
    pipeline: Switch = no_effect(False, "nothing is kept on NVMe")
    fast_init: Switch = no_effect(False, "nothing is kept on NVMe")
    ratio: Fraction = no_effect(1.0, "nothing is offloaded")
    super_offload: Switch = refused(False, _ON_DEVICE)
    cpuadam_cores_perc: Fraction = no_effect(0.8, "the update runs on the devices")


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

    stage: Stage = honoured(0, "1 shards optimizer state and master copy, 2 also gradients, 3 also parameters")
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
    sub_group_size: Count = no_effect(1_000_000_000, "the update is one fused program")
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
    save_muon_momentum_buffer_in_memory: Switch = no_effect(False, "there is no Muon in this version")
    leaf_module: LeafModule | None = no_effect(None, "parameters are gathered where they are used")

    offload_param: OffloadParam | None = honoured(None)
    offload_optimizer: OffloadOptimizer | None = honoured(None)
    zero_hpz_partition_size: Count = refused(1, "this version has no second shard group; remove the key")
    zero_quantized_weights: Switch = refused(False, _UNQUANTISED)
    zero_quantized_nontrainable_weights: Switch = refused(
        False, "this version gathers in the compute dtype; remove the key"
    )
    zero_quantized_gradients: Switch = refused(False, "this version reduces unquantised; use communication_data_type")
    zeropp_loco_param: Loco | None = refused(None, "this version reduces unquantised; remove the section")
    mics_shard_size: Whole = refused(-1, "this version shards over all data devices; remove the key")
    mics_hierarchical_params_gather: Switch = refused(False, "this version has no MiCS; remove the key")
    zenflow: Zenflow | None = refused(None, "this version has no ZenFlow; remove the section")
    legacy_stage1: Switch = refused(False, "DeepSpeed removed it; stage 1 is the one implementation")

    aliases: ClassVar[Mapping[str, str]] = {
        **{name.removeprefix("stage3_"): name for name in _PREFIXED},
        "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
        "gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    }

    @property
    def overlaps_comm(self) -> bool:
        """`overlap_comm`; when the file leaves it open, as DeepSpeed has it: at stage 3 only."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Offloading is refused where DeepSpeed would do it, and without effect where DeepSpeed ignores it."""
        stage = values.get("stage", 0)
        for name, first_stage in (("offload_optimizer", 1), ("offload_param", 3)):
            section = values.get(name)
            if section and section.device in ("cpu", "nvme") and stage >= first_stage:
                yield f"{name}.device", f"= {section.device!r} is refused: {_ON_DEVICE}"

    @classmethod
    def rewrite(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Maps the deprecated `cpu_offload*` keys onto the offload sections."""
        data = dict(data)
        pin = data.pop("cpu_offload_use_pin_memory", None)
        for name, section in _DEPRECATED.items():
            if data.pop(name, False) in (True, "true") and not data.get(section):
                data[section] = {"device": "cpu"} | ({} if pin is None else {"pin_memory": pin})
        return data
