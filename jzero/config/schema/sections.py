"""The sections around training: checkpoints, monitors, profilers, tuning, and what jzero leaves out.

A section without verdicts of its own has the one of its field in `jzero.config.config.Config`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from jzero.base.types import Json
from jzero.config.schema.scalars import (
    Anything,
    Count,
    Positive,
    Positive32,
    Real,
    Sizes,
    Switch,
    Text,
    Texts,
    choice,
    is_auto,
    whole,
)
from jzero.config.schema.section import Order, Section
from jzero.config.schema.verdicts import honoured, no_effect, refused, translated

Threads = Annotated[int, whole(1, 4096)]


class Aio(Section):
    """`aio`."""

    unchecked = True

    block_size: Annotated[int, whole(1, 2**30)] = honoured(
        1048576, "bytes of one request to the disk, rounded up to a multiple of 4096"
    )
    queue_depth: Threads = translated(8, "so many threads, each with one request, for each of `intra_op_parallelism`")
    intra_op_parallelism: Threads = translated(1, "multiplies `queue_depth`")
    thread_count: Positive = no_effect(1, "DeepSpeed's documentation calls intra_op_parallelism so")
    single_submit: Switch = no_effect(False, "requests are made one by one, by threads")
    overlap_events: Switch = no_effect(True, "requests are made one by one, by threads")
    use_gds: Switch = no_effect(False, "state goes to host memory, where it is updated")


class ParallelWrite(Section):
    """`checkpoint.parallel_write`."""

    pipeline_stage: Switch = False


class Writer(Section):
    """`checkpoint.writer`."""

    type: Text | None = None
    io_buffer_size: Positive = 64 * 2**20
    io_buffer_double: Switch = True
    show_statistics: Switch = False
    data_parallel: Text | None = None
    decoupled: Switch = False
    io_multiplier: Positive = 1


class Checkpoint(Section):
    """`checkpoint`."""

    unchecked = True

    tag_validation: Annotated[str, choice("Ignore", "Warn", "Fail")] = no_effect(
        "Warn", "one process names the checkpoint"
    )
    load_universal: Switch = no_effect(False, "a checkpoint holds whole arrays")
    use_node_local_storage: Switch = no_effect(False, "all processes write into one folder")
    parallel_write: ParallelWrite | None = no_effect(None, "every process writes its own shards")
    checkpoint_serialization: Switch = no_effect(True, "Orbax writes the arrays")
    writer: Writer | None = no_effect(None, "Orbax writes the arrays")


class FlopsProfiler(Section):
    """`flops_profiler`."""

    unchecked = True

    enabled: Switch = False
    recompute_fwd_factor: Real = 0.0
    profile_step: Count = 1
    module_depth: Anything = -1
    top_modules: Count = 1
    detailed: Switch = True
    output_file: Text | None = None


class CommsLogger(Section):
    """`comms_logger`."""

    enabled: Switch = False
    verbose: Switch = False
    prof_all: Switch = True
    debug: Switch = False
    prof_ops: Texts = ()


class Monitor(Section):
    """`tensorboard` and `csv_monitor`."""

    enabled: Switch = honoured(False, "figures of every step and every evaluation are written, over the samples seen")
    output_path: Text = honoured("", "the folder; one of the section's name in the run's output_dir when empty")
    job_name: Text = honoured("DeepSpeedJobName", "the folder inside it")


class Wandb(Section):
    """`wandb`."""

    enabled: Switch = False
    group: Text | None = None
    team: Text | None = None
    project: Text = "deepspeed"


class Comet(Section):
    """`comet`."""

    enabled: Switch = False
    samples_log_interval: Positive = 100
    project: Text | None = None
    workspace: Text | None = None
    api_key: Text | None = None
    experiment_name: Text | None = None
    experiment_key: Text | None = None
    online: Switch | None = None
    mode: Text | None = None


class Throughput(Section):
    """`timers.throughput`."""

    enabled: Switch = True
    synchronized: Switch = True


class Timers(Section):
    """`timers`."""

    throughput: Throughput | None = None


class ModelInfo(Section):
    """`autotuning.model_info`."""

    profile: Switch = False
    num_params: Count | None = None
    hidden_size: Count | None = None
    num_layers: Count | None = None


class Autotuning(Section):
    """`autotuning`."""

    unchecked = True

    enabled: Switch = False
    fast: Switch = True
    results_dir: Text = "autotuning_results"
    exps_dir: Text = "autotuning_exps"
    overwrite: Switch = True
    metric: Text = "throughput"
    metric_path: Text | None = None
    start_profile_step: Count = 3
    end_profile_step: Count = 5
    tuner_type: Text = "gridsearch"
    tuner_early_stopping: Count = 5
    tuner_num_trials: Count = 50
    arg_mappings: Anything = None
    max_train_batch_size: Count | None = None
    min_train_batch_size: Count = 1
    max_train_micro_batch_size_per_gpu: Count = 1024
    min_train_micro_batch_size_per_gpu: Count = 1
    num_tuning_micro_batch_sizes: Count = 3
    mp_size: Positive = 1
    model_info: ModelInfo | None = None
    model_info_path: Text | None = None


class Elasticity(Section):
    """`elasticity`."""

    enabled: Switch = honoured(False, "the section decides the batch sizes")
    max_train_batch_size: Positive32 = honoured(2000, "samples per optimizer step, at most")
    micro_batch_sizes: Sizes = honoured((2, 4, 6), "sizes that a micro-batch may have")
    min_gpus: Positive32 = honoured(1, "the batch size is to fit this many devices and more")
    max_gpus: Positive32 = honoured(10000, "the batch size is to fit up to this many devices")
    num_gpus_per_node: Positive32 = honoured(1, "version 0.2 counts nodes of so many devices")
    model_parallel_size: Positive32 = honoured(1, "1; others are refused")
    min_time: Count = no_effect(0, "no job scheduler is told how long a run takes")
    prefer_larger_batch: Switch = honoured(True, "of batches that fit as many devices the larger one")
    prefer_large_batch: Switch = no_effect(True, "DeepSpeed's documentation calls prefer_larger_batch so")
    ignore_non_elastic_batch_info: Switch = honoured(False, "batch sizes beside the section are no error")
    version: Real = honoured(0.2, "0.1 takes devices one by one, 0.2 whole nodes")

    in_order = (Order("min_gpus", "max_gpus"),)

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """The two versions that there are, without model parallelism."""
        yield from ((name, 'must be a value, got "auto"') for name, value in values.items() if is_auto(value))
        if values.get("version", 0.2) not in (0.1, 0.2):
            yield "version", f"must be 0.1 or 0.2, got {values['version']!r}"
        if values.get("enabled") is True and values.get("model_parallel_size", 1) != 1:
            yield "model_parallel_size", "is refused: this version has no model parallelism from the file; set it to 1"


class Pipeline(Section):
    """`pipeline`."""

    unchecked = True

    stages: Anything = "auto"
    partition: Text = "best"
    seed_layers: Switch = False
    activation_checkpoint_interval: Count = 0
    pipe_partitioned: Switch = True
    grad_partitioned: Switch = True


_ONE = "this version has no tensor parallelism from the file; use 1 and pass a mesh with a `tensor` axis"


class TensorParallelSize(Section):
    """`tensor_parallel.tp`."""

    tp_size: Positive = refused(1, _ONE)
    tp_grain_size: Positive = no_effect(1, "nothing is divided")
    mpu: Anything = no_effect(None, "the mesh says who works together")
    tp_group: Anything = no_effect(None, "the mesh says who works together")


class TensorParallel(Section):
    """`tensor_parallel`."""

    autotp_size: Count = honoured(0, "0 or 1: nothing is divided")
    dtype: Anything = no_effect("fp16", "fp16.enabled and bf16.enabled choose the compute dtype")
    tp_overlap_comm: Switch = no_effect(False, "XLA's scheduler overlaps collectives with compute")
    preset_model: Text | None = no_effect(None, "nothing is divided")
    partition_config: Anything = no_effect(None, "nothing is divided")
    tp: TensorParallelSize | None = honoured(None)

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Sizes of 1 say that there is none."""
        size = values.get("autotp_size", 0)
        if isinstance(size, int) and size > 1:
            yield "autotp_size", f"= {size} is refused: {_ONE}"


class ExpertParallel(Section):
    """`expert_parallel`."""

    enabled: Switch = False
    autoep_size: Positive = 1
    preset_model: Text | None = None


class Compile(Section):
    """`compile`."""

    deepcompile: Switch = False
    free_activation: Switch = False
    free_activation_threshold: Count = 10 * 2**20
    offload_activation: Switch = False
    offload_opt_states: Switch = False
    double_buffer: Switch = True
    symmetric_memory: Switch = False
    debug_log: Switch = False
    offload_parameters: Switch = False
    sync_before_reduce: Switch = False
    sync_after_reduce: Switch = False
    sync_before_allgather: Switch = False
    sync_after_allgather: Switch = False
    keep_int_input_tensors: Switch = True
    keep_all_input_tensors: Switch = False
    passes: Texts | None = None


class HybridEngine(Section):
    """`hybrid_engine`."""

    enabled: Switch = False
    max_out_tokens: Positive = 512
    inference_tp_size: Positive = 1
    release_inference_cache: Switch = False
    pin_parameters: Switch = True
    tp_gather_partition_size: Positive = 8
    enable_cuda_graph: Switch = False


class ProgressiveLayerDrop(Section):
    """`progressive_layer_drop`."""

    enabled: Switch = False
    theta: Real = 1.0
    gamma: Real = 0.001


class Eigenvalue(Section):
    """`eigenvalue`."""

    enabled: Switch = False
    verbose: Switch = False
    max_iter: Count = 100
    tol: Real = 1e-2
    stability: Real = 1e-6
    gas_boundary_resolution: Positive = 1
    layer_name: Text = "bert.encoder.layer"
    layer_num: Count = 0


class Nebula(Section):
    """`nebula`."""

    enabled: Switch = False
    enable_nebula_load: Switch = True
    load_path: Text | None = None
    persistent_storage_path: Text | None = None
    persistent_time_interval: Count = 100
    num_of_version_in_retention: Count = 2
