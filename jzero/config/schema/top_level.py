"""The top level of a DeepSpeed JSON: every key of it, and the rules that hold across its sections."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from jzero.base.types import Json
from jzero.config.schema import sections
from jzero.config.schema.activation import ActivationCheckpointing
from jzero.config.schema.extensions import Extensions
from jzero.config.schema.mixed import contradictions, mixed_precision
from jzero.config.schema.optimizer import OptimizerConfig
from jzero.config.schema.precision import Amp, Bf16, DataTypes, Fp16, TorchAutocast, disagreements
from jzero.config.schema.rates import upside_down
from jzero.config.schema.scalars import (
    LARGEST_REAL,
    Anything,
    Count,
    DType,
    NonNegative,
    Positive32,
    StepsPerPrint,
    Switch,
    Text,
    choice,
    is_auto,
)
from jzero.config.schema.scheduler import SchedulerConfig
from jzero.config.schema.section import Mapped, Section
from jzero.config.schema.verdicts import Usual, honoured, no_effect, refused, switched_on, translated
from jzero.config.schema.zero import ZeroConfig

_METRICS = "every step returns its metrics, and `jzero train` writes them to metrics.jsonl"
_NORMS = Usual(1e-6, LARGEST_REAL, "gradients are cut to this norm")
_ROUNDS = Usual(1, 100_000, "an update waits for all of these micro-batches")
_PROFILE = "use jax.profiler, and jzero.plan for memory and traffic"
_DIVIDED_ANYWAY = "16-bit reductions divide by the number of devices first without it"
_NOT_HERE = "it would change the training, and this version does not have it; remove the section"
_ORBAX = "checkpoints are written by Orbax"


class TopLevel(Section):
    """The keys of a configuration; `jzero.Config` reads and resolves them."""

    train_batch_size: Positive32 = honoured(None, "samples per optimizer step")
    train_micro_batch_size_per_gpu: Positive32 = honoured(
        None,
        'samples per device and micro-batch; `"auto"`, where no training arguments and no other sizes decide, is the '
        "largest that fits, by the closed form of jzero.plan",
    )
    gradient_accumulation_steps: Positive32 = honoured(None, "micro-batches per optimizer step", usual=_ROUNDS)
    optimizer: OptimizerConfig | None = honoured(None)
    scheduler: SchedulerConfig | None = honoured(None)
    gradient_clipping: NonNegative = honoured(
        1.0, "largest global L2 norm of the gradients; 0 switches clipping off", usual=_NORMS
    )
    zero_optimization: ZeroConfig = honoured(ZeroConfig())
    fp16: Fp16 = honoured(Fp16())
    bf16: Bf16 = honoured(Bf16())
    data_types: DataTypes = honoured(DataTypes())
    jzero: Extensions = honoured(Extensions())
    communication_data_type: DType | None = honoured(None, "dtype in which gradients are reduced; fp32 when not given")
    prescale_gradients: Switch = honoured(
        False, "divide gradients by the number of devices before they are summed; 16-bit sums do so in any case"
    )
    gradient_predivide_factor: NonNegative = honoured(
        1.0, "divide gradients by this before they are summed, and by the rest afterwards; at 1, 16-bit sums prescale"
    )

    steps_per_print: StepsPerPrint | None = honoured(
        None, "`jzero train` prints a line every so many steps, unless training_arguments.logging_steps is given"
    )
    dump_state: Switch = honoured(False, "`jzero train` prints the resolved configuration before it starts")
    tensorboard: sections.Monitor | None = honoured(
        None,
        "`jzero train` writes event files for TensorBoard; a loop of your own calls jzero.train.monitor.event_writers",
    )
    csv_monitor: sections.Monitor | None = honoured(
        None,
        "`jzero train` writes a CSV file for each figure; a loop of your own calls jzero.train.monitor.event_writers",
    )

    wall_clock_breakdown: Switch = no_effect(False, "a step is one program; jax.profiler shows what it spends time on")
    memory_breakdown: Switch = no_effect(
        False, "`jzero train` shows what each device holds, and jzero.plan the memory of the compiled program"
    )
    sparse_gradients: Switch = no_effect(False, "gradients of embeddings are reduced as dense arrays")
    zero_allow_untested_optimizer: Switch = no_effect(False, "any optax transformation works at any stage")
    zero_force_ds_cpu_optimizer: Switch = no_effect(True, "the update runs on the devices")
    disable_allgather: Switch = no_effect(False, "sharded parameters are always gathered in one collective")
    dataloader_drop_last: Switch = no_effect(
        False, "every batch is whole: `jzero train` fills the last one of an epoch from the next"
    )
    vocabulary_size: Count | None = no_effect(None, "the model knows its vocabulary")
    graph_harvesting: Switch = no_effect(False, "XLA captures graphs by itself")
    log_level: Text | None = no_effect(None, "jzero logs through Python's logging")
    use_data_before_expert_parallelism: Switch = no_effect(False, "the mesh orders the devices")
    seq_parallel_communication_data_type: DType = no_effect("fp32", "there is no sequence parallelism")
    activation_checkpointing: ActivationCheckpointing | None = honoured(None)
    aio: sections.Aio | None = honoured(None)
    checkpoint: sections.Checkpoint | None = honoured(None)
    flops_profiler: sections.FlopsProfiler | None = no_effect(None, _PROFILE)
    comms_logger: sections.CommsLogger | None = no_effect(
        None, "engine.explain() lists what each parameter sends, and jzero.plan what the compiled program sends"
    )
    wandb: sections.Wandb | None = no_effect(None, _METRICS)
    comet: sections.Comet | None = no_effect(None, _METRICS)
    timers: sections.Timers | None = no_effect(None, _PROFILE)
    compile: sections.Compile | None = no_effect(None, "every step is compiled by XLA")

    gradient_allreduce_op: Annotated[str, choice("mean", "sum")] = honoured(
        "mean", "whether the devices' gradients are averaged or added up; added up not at stage 3"
    )
    data_parallel_size: Positive32 | None = honoured(None, "must be the number of devices that take different data")
    elasticity: sections.Elasticity | None = honoured(None, "decides the batch sizes for the number of devices")
    amp: Amp | None = translated(
        None, "without ZeRO, Apex is read as fp16 with Apex's loss scaler; with it, DeepSpeed refuses it too"
    )
    torch_autocast: TorchAutocast | None = translated(None, "read as `bf16` or `fp16`, which keep an fp32 master copy")
    tensor_parallel: sections.TensorParallel | None = honoured(None, "sizes of 1; others are refused")

    autotuning: sections.Autotuning | None = no_effect(
        None, "it belongs to a launch that tunes; training, in DeepSpeed too, does not read it"
    )
    pipeline: sections.Pipeline | None = no_effect(
        None, "it divides DeepSpeed's PipelineModule, and every other model runs whole"
    )
    expert_parallel: sections.ExpertParallel | None = no_effect(
        None, "experts are parameters like all others, and the ZeRO stage divides them"
    )
    hybrid_engine: sections.HybridEngine | None = no_effect(None, "it speeds up generation, and jzero trains")
    eigenvalue: sections.Eigenvalue | None = no_effect(None, "only quantised training reads it")
    nebula: sections.Nebula | None = no_effect(None, _ORBAX)
    datastates_ckpt: Anything = no_effect(None, _ORBAX)

    managed_gradient_accumulation: Switch = refused(True, "train_batch accumulates by itself; remove the key")
    sequence_parallel_size: Positive32 | None = refused(1, "this version has no sequence parallelism; remove the key")
    progressive_layer_drop: sections.ProgressiveLayerDrop | None = refused(None, _NOT_HERE)
    data_efficiency: Anything = refused(None, _NOT_HERE)
    curriculum_learning: Anything = refused(None, _NOT_HERE)
    compression_training: Anything = refused(None, _NOT_HERE)
    quantize_training: Anything = refused(None, _NOT_HERE)
    weight_quantization: Anything = refused(None, _NOT_HERE)
    sparse_attention: Anything = no_effect(None, "only a model that asks for it reads it, in DeepSpeed too")

    aliases: ClassVar[Mapping[str, str]] = {"bfloat16": "bf16"}
    deprecated: ClassVar[frozenset[str]] = frozenset({"bfloat16"})
    synonyms: ClassVar[Mapping[str, str]] = {
        "max_grad_norm": "gradient_clipping",
        "lr_scheduler": "scheduler",
        "lr_scheduler_type": "scheduler.type",
        "learning_rate": "optimizer.params.lr",
        "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
        "warmup_steps": "scheduler.params.warmup_num_steps",
        "gradient_checkpointing": "jzero.remat",
    }
    foreign: ClassVar[Mapping[str, str]] = {
        "fp32_allreduce": "DeepSpeed no longer reads it; communication_data_type has taken its place",
        "allgather_size": "DeepSpeed no longer reads it; zero_optimization.allgather_bucket_size has taken its place",
        "min_lr": "DeepSpeed does not read it; scheduler.params says where a schedule ends",
        "enable_cuda_graph": "it belongs to DeepSpeed's inference",
        "replace_with_kernel_inject": "it belongs to DeepSpeed's inference",
        "local_rank": "a launcher hands it to the program",
        "num_gpus": "a launcher decides how many devices there are",
        "num_nodes": "a launcher decides how many devices there are",
        "zero3_init_flag": "models are initialised sharded at any stage",
        "monitor_config": "DeepSpeed reads each monitor at the top level",
    }

    @classmethod
    def modernise(cls, data: dict[str, Json]) -> Iterator[Mapped]:
        """`zero_optimization: true` is an old way to write stage 1; Apex and autocast are other ways to 16 bits."""
        zero = data.get("zero_optimization")
        if isinstance(zero, bool):
            data["zero_optimization"] = {"stage": int(zero)}
            yield Mapped("zero_optimization.stage", int(zero), "zero_optimization", zero)
        yield from mixed_precision(data)

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Number formats agree; gradients are divided in one way, and where DeepSpeed would do it."""
        yield from disagreements(values)
        yield from contradictions(values)
        yield from upside_down(values)
        partition = [
            (name, values[name])
            for name in ("prescale_gradients", "gradient_predivide_factor")
            if name in values and switched_on(values[name], cls.model_fields[name].default)
        ]
        if len(partition) > 1:
            yield "prescale_gradients", "and `gradient_predivide_factor` both divide gradients; keep one of them"
        zero = values.get("zero_optimization", ZeroConfig())
        if values.get("gradient_allreduce_op") == "sum" and zero.stage == 3:
            yield "gradient_allreduce_op", "= 'sum' is refused at stage 3, as in DeepSpeed: multiply the loss instead"
        own = values.get("jzero", Extensions())
        if own.two_level == "auto" and zero.stage == 3 and (zero.shard_group or zero.hpz_group):
            other = "mics_shard_size" if zero.shard_group else "zero_hpz_partition_size"
            wrong = (
                f'= "auto" is refused with `zero_optimization.{other}`, which says how many devices; keep one of them'
            )
            yield "jzero.two_level", wrong
        for name, value in partition:
            if value == 0:
                yield name, f"must be a number above 0, got {value!r}"
            elif not is_auto(value) and not 2**-16 <= value <= 2**16:
                yield name, f"must be a number between 2**-16 and 2**16, got {value!r}"
            elif zero.stage == 3:
                yield name, f"= {value!r} is refused at stage 3: remove it; {_DIVIDED_ANYWAY}"
            elif zero.stage and zero.reduce_scatter is not False:
                advice = f"set `zero_optimization.reduce_scatter` to false or remove it; {_DIVIDED_ANYWAY}"
                yield name, f"= {value!r} is refused where gradients are scattered: {advice}"

    @property
    def asks_two_levels(self) -> bool:
        """Whether the state is to be divided over groups of devices and inside of them."""
        zero = self.zero_optimization
        return zero.hpz_group is not None or (zero.stage == 3 and self.jzero.two_level == "auto")

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """The compute dtype."""
        return "fp16" if self.fp16.enabled is True else "bf16" if self.bf16.enabled is True else "fp32"
