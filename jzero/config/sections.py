"""The sections around training: rematerialisation, checkpoints, monitors, profilers, tuning, and what jzero leaves out.

A section without verdicts of its own has the one of its field in `jzero.config.config.Config`.
"""

from typing import Annotated

from jzero.config.scalars import Anything, Count, Positive, Real, Switch, Text, Texts, choice
from jzero.config.section import Section
from jzero.config.verdicts import no_effect, refused


class ActivationCheckpointing(Section):
    """`activation_checkpointing`."""

    partition_activations: Switch = False
    number_checkpoints: Count | None = None
    contiguous_memory_optimization: Switch = False
    synchronize_checkpoint_boundary: Switch = False
    profile: Switch = False
    cpu_checkpointing: Switch = False


class Aio(Section):
    """`aio`."""

    block_size: Positive = 1048576
    queue_depth: Positive = 8
    intra_op_parallelism: Positive = 1
    thread_count: Positive = no_effect(1, "DeepSpeed's documentation calls intra_op_parallelism so")
    single_submit: Switch = False
    overlap_events: Switch = True
    use_gds: Switch = False


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

    tag_validation: Annotated[str, choice("Ignore", "Warn", "Fail")] = no_effect(
        "Warn", "one process names the checkpoint"
    )
    load_universal: Switch = no_effect(False, "a checkpoint holds whole arrays")
    use_node_local_storage: Switch = refused(False, "the processes of a run write into one shared directory")
    parallel_write: ParallelWrite | None = no_effect(None, "every process writes its own shards")
    checkpoint_serialization: Switch = no_effect(True, "Orbax writes the arrays")
    writer: Writer | None = no_effect(None, "Orbax writes the arrays")


class FlopsProfiler(Section):
    """`flops_profiler`."""

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

    enabled: Switch = False
    output_path: Text = ""
    job_name: Text = "DeepSpeedJobName"


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

    enabled: Switch = False
    max_train_batch_size: Positive = 2000
    micro_batch_sizes: tuple[int, ...] = (2, 4, 6)
    min_gpus: Positive = 1
    max_gpus: Positive = 10000
    num_gpus_per_node: Positive = 1
    model_parallel_size: Positive = 1
    min_time: Count = 0
    prefer_larger_batch: Switch = True
    ignore_non_elastic_batch_info: Switch = False
    version: Anything = 0.2


class Pipeline(Section):
    """`pipeline`."""

    stages: Anything = "auto"
    partition: Text = "best"
    seed_layers: Switch = False
    activation_checkpoint_interval: Count = 0
    pipe_partitioned: Switch = True
    grad_partitioned: Switch = True


class TensorParallelSize(Section):
    """`tensor_parallel.tp`."""

    tp_size: Positive = 1
    tp_grain_size: Positive = 1
    mpu: Anything = None
    tp_group: Anything = None


class TensorParallel(Section):
    """`tensor_parallel`."""

    autotp_size: Count = 0
    dtype: Anything = no_effect("fp16", "fp16.enabled and bf16.enabled choose the compute dtype")
    tp_overlap_comm: Switch = no_effect(False, "XLA's scheduler overlaps collectives with compute")
    preset_model: Text | None = None
    partition_config: Anything = None
    tp: TensorParallelSize | None = None


class ExpertParallel(Section):
    """`expert_parallel`."""

    enabled: Switch = False
    autoep_size: Positive = 1
    preset_model: Text | None = None


class Compile(Section):
    """`compile`."""

    deepcompile: Switch = refused(False, "every step is compiled by XLA already; remove the key")
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
