"""`Config`: a DeepSpeed JSON as one frozen, validated object."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PrivateAttr

from jzero.config.resolve import auto
from jzero.config.schema import sections
from jzero.config.schema.activation import ActivationCheckpointing
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.extensions import Extensions
from jzero.config.schema.mixed import contradictions, mixed_precision
from jzero.config.schema.optimizer import OptimizerConfig
from jzero.config.schema.precision import Amp, Bf16, DataTypes, Fp16, TorchAutocast, disagreements
from jzero.config.schema.scalars import (
    Anything,
    Count,
    DType,
    NonNegative,
    Positive,
    StepsPerPrint,
    Switch,
    Text,
    choice,
)
from jzero.config.schema.scheduler import SchedulerConfig
from jzero.config.schema.section import Mapped, Section, Trace, build, fail, given
from jzero.config.schema.verdicts import active_keys, honoured, no_effect, refused, show, switched_on, translated
from jzero.config.schema.zero import ZeroConfig
from jzero.config.show.notes import notes_on
from jzero.config.sources.load import read_source

_METRICS = "every step returns its metrics, and `jzero train` writes them to metrics.jsonl"
_PROFILE = "use jax.profiler, and jzero.plan for memory and traffic"
_DIVIDED_ANYWAY = "16-bit reductions divide by the number of devices first without it"
_NOT_HERE = "it would change the training, and this version does not have it; remove the section"
_ORBAX = "checkpoints are written by Orbax"


class Config(Section):
    """A DeepSpeed configuration: `load` reads one, `resolve` makes every value concrete.

    Example:
        >>> config = Config.load({"train_batch_size": 32, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
        >>> resolved = config.resolve(world=8)
        >>> resolved.train_micro_batch_size_per_gpu, resolved.zero_optimization.stage, resolved.precision
        (4, 3, 'bf16')
    """

    train_batch_size: Positive = honoured(None, "samples per optimizer step")
    train_micro_batch_size_per_gpu: Positive = honoured(
        None,
        'samples per device and micro-batch; `"auto"`, where no training arguments and no other sizes decide, is the '
        "largest that fits, by the closed form of jzero.plan",
    )
    gradient_accumulation_steps: Positive = honoured(None, "micro-batches per optimizer step")
    optimizer: OptimizerConfig | None = honoured(None)
    scheduler: SchedulerConfig | None = honoured(None)
    gradient_clipping: NonNegative = honoured(1.0, "largest global L2 norm of the gradients; 0 switches clipping off")
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
    data_parallel_size: Positive | None = honoured(None, "must be the number of devices that take different data")
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
    sequence_parallel_size: Positive | None = refused(1, "this version has no sequence parallelism; remove the key")
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

    _file: str = PrivateAttr("configuration")
    _trace: Trace = PrivateAttr(default_factory=Trace)

    @classmethod
    def load(cls, source: "Source", *, file: str | None = None, notes: Iterable[str] = ()) -> "Config":
        """Reads and validates a configuration; values may still be `"auto"`.

        Args:
            source: The path of a JSON, Hjson or YAML file, the text of a JSON object or its base64, a mapping, or a
                Config (returned as it is). Accelerate's configuration is read for the DeepSpeed part in it.
            file: What to call a mapping in messages.
            notes: Sentences on how the mapping came about, for `Config.notes`.

        Returns:
            The configuration as given, frozen.

        Raises:
            ConfigError: One sentence for each thing that is wrong: a file that cannot be read, an unknown key with its
                nearest known name, a value of a wrong type, keys that exclude each other, something that jzero refuses.
        """
        if isinstance(source, Config):
            return source
        data, file, read = read_source(source, file or "configuration")
        return cls._read(data, file, Trace(notes=[*notes, *read]))

    @classmethod
    def _read(cls, data: Mapping[str, Any], file: str, trace: Trace) -> "Config":
        config = build(cls, data, file=file, trace=trace)
        config._file, config._trace = file, trace
        refused_keys = active_keys(config, "refused")
        fail(file, [f"`{key.path}` = {show(key.value)} is refused: {key.verdict.reason}" for key in refused_keys])
        return config

    @classmethod
    def modernise(cls, data: dict[str, Any]) -> Iterator[Mapped]:
        """`zero_optimization: true` is an old way to write stage 1; Apex and autocast are other ways to 16 bits."""
        zero = data.get("zero_optimization")
        if isinstance(zero, bool):
            data["zero_optimization"] = {"stage": int(zero)}
            yield Mapped("zero_optimization.stage", int(zero), "zero_optimization", zero)
        yield from mixed_precision(data)

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Number formats agree; gradients are divided in one way, and where DeepSpeed would do it."""
        yield from disagreements(values)
        yield from contradictions(values)
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
        for name, value in partition:
            if value == 0:
                yield name, f"must be a number above 0, got {value!r}"
            elif zero.stage == 3:
                yield name, f"= {value!r} is refused at stage 3: remove it; {_DIVIDED_ANYWAY}"
            elif zero.stage and zero.reduce_scatter is not False:
                advice = f"set `zero_optimization.reduce_scatter` to false or remove it; {_DIVIDED_ANYWAY}"
                yield name, f"= {value!r} is refused where gradients are scattered: {advice}"

    def resolve(
        self,
        *,
        world: int,
        training_arguments: TrainingArguments | None = None,
        hidden_size: int | Callable[[], int | None] | None = None,
        num_training_steps: int | None = None,
        partly: bool = False,
    ) -> "Config":
        """Fills every `"auto"` and derives the batch sizes.

        Args:
            world: Number of devices that take different data.
            training_arguments: What `"auto"` is filled from; also the source of an optimizer when the file has none.
            hidden_size: The model's width, for the sizes that Hugging Face derives from it; a function is only called
                when a size needs it.
            num_training_steps: Optimizer steps of the whole run.
            partly: Leave an `"auto"` that nobody can fill, and batch sizes that nobody gives, as they are.

        Returns:
            Unless `partly`, a configuration without `"auto"`, whose three batch sizes are numbers that fit together.

        Raises:
            ConfigError: All values that nobody can fill, all values that contradict the training arguments, or batch
                sizes that do not fit `world`.
        """
        inputs = auto.Inputs(world, training_arguments, hidden_size, num_training_steps, partly)
        data, origins, notes = auto.fill(self, self.origins, inputs, self._file)
        resolved = Config._read(data, self._file, Trace())
        resolved._trace = Trace(origins, list(dict.fromkeys([*self._trace.notes, *notes])))
        return resolved

    def replaced(self, values: Mapping[str, Any], *, origin: str = "given", note: str | None = None) -> "Config":
        """The configuration with other values for some keys.

        Args:
            values: By dotted path; sections come into being where they are needed.
            origin: Where these values come from.
            note: A sentence on them, for `notes`.

        Raises:
            ConfigError: The values do not fit the others.

        Example:
            >>> Config.load({"train_batch_size": 8}).replaced({"zero_optimization.stage": 2}).zero_optimization.stage
            2
        """
        data = given(self)
        for path, value in values.items():
            *outer, name = path.split(".")
            place = data
            for key in outer:
                place[key] = dict(place.get(key) or {})
                place = place[key]
            place[name] = value
        changed = Config._read(data, self._file, Trace())
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        changed._trace = Trace(origins, [*self._trace.notes, *([note] if note else [])])
        return changed

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """The compute dtype."""
        return "fp16" if self.fp16.enabled is True else "bf16" if self.bf16.enabled is True else "fp32"

    @property
    def notes(self) -> list[str]:
        """One sentence for each key that is not read as it stands, that has no effect, or that contradicts another."""
        return list(dict.fromkeys([*self._trace.notes, *notes_on(self)]))

    @property
    def origins(self) -> Mapping[str, str]:
        """Where the value of each key that is set comes from, by dotted path; see `jzero.config.show.report`."""
        return self._trace.origins


Source = str | os.PathLike[str] | Mapping[str, Any] | Config
"""What `Config.load` reads."""
