"""`Config`: a DeepSpeed JSON as one frozen, validated object."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PrivateAttr

from jzero.config import auto, sections
from jzero.config.arguments import TrainingArguments
from jzero.config.extensions import Extensions
from jzero.config.load import parse_object, read_object
from jzero.config.optimizer import OptimizerConfig
from jzero.config.precision import Amp, Bf16, DataTypes, Fp16, TorchAutocast
from jzero.config.scalars import Anything, Count, DType, NonNegative, Positive, StepsPerPrint, Switch, Text, choice
from jzero.config.scheduler import SchedulerConfig
from jzero.config.section import Section, build, fail
from jzero.config.verdicts import active_keys, honoured, no_effect, refused, show, switched_on
from jzero.config.zero import ZeroConfig

_METRICS = "every step returns its metrics, and `jzero train` writes them to metrics.jsonl"
_PROFILE = "use jax.profiler, and jzero.plan for memory and traffic"
_DIVIDED_ANYWAY = "16-bit reductions divide by the number of devices first without it"
_NOT_HERE = "this version does not have it; remove the section"


class Config(Section):
    """A DeepSpeed configuration: `load` reads one, `resolve` makes every value concrete.

    Example:
        >>> config = Config.load({"train_batch_size": 32, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
        >>> resolved = config.resolve(world=8)
        >>> resolved.train_micro_batch_size_per_gpu, resolved.zero_optimization.stage, resolved.precision
        (4, 3, 'bf16')
    """

    train_batch_size: Positive = honoured(None, "samples per optimizer step")
    train_micro_batch_size_per_gpu: Positive = honoured(None, "samples per device and micro-batch")
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

    steps_per_print: StepsPerPrint | None = no_effect(None, _METRICS)
    wall_clock_breakdown: Switch = no_effect(False, _PROFILE)
    memory_breakdown: Switch = no_effect(False, _PROFILE)
    dump_state: Switch = no_effect(False, "print engine.config")
    sparse_gradients: Switch = no_effect(False, "gradients of embeddings are reduced as dense arrays")
    zero_allow_untested_optimizer: Switch = no_effect(False, "any optax transformation works at any stage")
    zero_force_ds_cpu_optimizer: Switch = no_effect(True, "the update runs on the devices")
    disable_allgather: Switch = no_effect(False, "sharded parameters are always gathered in one collective")
    dataloader_drop_last: Switch = no_effect(False, "a step takes a whole batch")
    vocabulary_size: Count | None = no_effect(None, "the model knows its vocabulary")
    graph_harvesting: Switch = no_effect(False, "XLA captures graphs by itself")
    log_level: Text | None = no_effect(None, "jzero logs through Python's logging")
    use_data_before_expert_parallelism: Switch = no_effect(False, "the mesh orders the devices")
    seq_parallel_communication_data_type: DType = no_effect("fp32", "there is no sequence parallelism")
    activation_checkpointing: sections.ActivationCheckpointing | None = no_effect(
        None, "the model marks what it recomputes, with nnx.remat, nn.remat or jax.checkpoint"
    )
    aio: sections.Aio | None = no_effect(None, "nothing is kept on NVMe")
    checkpoint: sections.Checkpoint | None = honoured(None)
    flops_profiler: sections.FlopsProfiler | None = no_effect(None, _PROFILE)
    comms_logger: sections.CommsLogger | None = no_effect(None, _PROFILE)
    tensorboard: sections.Monitor | None = no_effect(None, _METRICS)
    csv_monitor: sections.Monitor | None = no_effect(None, _METRICS)
    wandb: sections.Wandb | None = no_effect(None, _METRICS)
    comet: sections.Comet | None = no_effect(None, _METRICS)
    timers: sections.Timers | None = no_effect(None, _PROFILE)
    compile: sections.Compile | None = no_effect(None, "every step is compiled by XLA")

    gradient_allreduce_op: Annotated[str, choice("mean", "sum")] = refused("mean", "multiply the loss instead")
    managed_gradient_accumulation: Switch = refused(True, "train_batch accumulates by itself; remove the key")
    sequence_parallel_size: Positive | None = refused(1, "this version has no sequence parallelism; remove the key")
    data_parallel_size: Positive | None = refused(None, "the mesh decides how many devices take data; remove the key")
    amp: Amp | None = refused(None, "Apex is a PyTorch extension; use `bf16` or `fp16`")
    torch_autocast: TorchAutocast | None = refused(None, "use `bf16` or `fp16`, which keep an fp32 master copy")
    autotuning: sections.Autotuning | None = refused(None, "this version does not tune; set `enabled` to false")
    elasticity: sections.Elasticity | None = refused(None, "this version has fixed batch sizes; set `enabled` to false")
    pipeline: sections.Pipeline | None = refused(None, "this version has no pipeline stages; remove the section")
    tensor_parallel: sections.TensorParallel | None = refused(None, _NOT_HERE)
    expert_parallel: sections.ExpertParallel | None = refused(None, _NOT_HERE)
    hybrid_engine: sections.HybridEngine | None = refused(None, "jzero trains only; remove the section")
    progressive_layer_drop: sections.ProgressiveLayerDrop | None = refused(None, _NOT_HERE)
    eigenvalue: sections.Eigenvalue | None = refused(None, _NOT_HERE)
    nebula: sections.Nebula | None = refused(None, "checkpoints are written by Orbax; remove the section")
    datastates_ckpt: Anything = refused(None, "checkpoints are written by Orbax; remove the section")
    data_efficiency: Anything = refused(None, _NOT_HERE)
    curriculum_learning: Anything = refused(None, _NOT_HERE)
    compression_training: Anything = refused(None, _NOT_HERE)
    quantize_training: Anything = refused(None, _NOT_HERE)
    weight_quantization: Anything = refused(None, _NOT_HERE)
    sparse_attention: Anything = refused(None, "attention belongs to the model; remove the section")

    aliases: ClassVar[Mapping[str, str]] = {"bfloat16": "bf16"}

    synonyms: ClassVar[Mapping[str, str]] = {"max_grad_norm": "gradient_clipping"}

    _file: str = PrivateAttr("configuration")

    @classmethod
    def load(cls, source: "Source", *, file: str | None = None) -> "Config":
        """Reads and validates a configuration; values may still be `"auto"`.

        Args:
            source: A path, the text of a JSON object, a mapping, or a Config (returned as it is).
            file: What to call a mapping in messages.

        Returns:
            The configuration as given, frozen.

        Raises:
            ConfigError: One sentence for each thing that is wrong: a file that cannot be read, an unknown key with its
                nearest known name, a value of a wrong type, keys that exclude each other, something that jzero refuses.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Mapping):
            data, file = source, file or "configuration"
        elif isinstance(source, str) and source.lstrip().startswith("{"):
            data, file = parse_object(source, file or "configuration"), file or "configuration"
        else:
            data, file = read_object(source), str(Path(source))
        config = build(cls, data, file=file)
        config._file = file
        refused_keys = active_keys(config, "refused")
        fail(file, [f"`{key.path}` = {show(key.value)} is refused: {key.verdict.reason}" for key in refused_keys])
        return config

    @classmethod
    def rewrite(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """`zero_optimization: true` is an old way to write stage 1."""
        zero = data.get("zero_optimization")
        return {**data, "zero_optimization": {"stage": int(zero)}} if isinstance(zero, bool) else data

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """fp16 and bf16 exclude each other; gradients are divided in one way, and where DeepSpeed would do it."""
        fp16, bf16 = values.get("fp16"), values.get("bf16")
        if fp16 and bf16 and fp16.enabled is True and bf16.enabled is True:
            yield "fp16.enabled", "and `bf16.enabled` are both true; switch one of them off"
        division = [
            (name, values[name])
            for name in ("prescale_gradients", "gradient_predivide_factor")
            if name in values and switched_on(values[name], cls.model_fields[name].default)
        ]
        if len(division) > 1:
            yield "prescale_gradients", "and `gradient_predivide_factor` both divide gradients; keep one of them"
        zero = values.get("zero_optimization", ZeroConfig())
        for name, value in division:
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
        hidden_size: int | None = None,
        num_training_steps: int | None = None,
    ) -> "Config":
        """Fills every `"auto"` and derives the batch sizes.

        Args:
            world: Number of devices that take different data.
            training_arguments: What `"auto"` is filled from; also the source of an optimizer when the file has none.
            hidden_size: The model's width, for the sizes that Hugging Face derives from it.
            num_training_steps: Optimizer steps of the whole run.

        Returns:
            A configuration without `"auto"`, whose three batch sizes are numbers that fit together.

        Raises:
            ConfigError: All values that nobody can fill, all values that contradict the training arguments, or batch
                sizes that do not fit `world`.
        """
        inputs = auto.Inputs(world, training_arguments, hidden_size, num_training_steps)
        return Config.load(auto.fill(self, inputs, self._file), file=self._file)

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """The compute dtype."""
        return "fp16" if self.fp16.enabled is True else "bf16" if self.bf16.enabled is True else "fp32"

    @property
    def notes(self) -> list[str]:
        """One sentence for each key that asks for something and has no effect here."""
        return [f"`{key.path}` has no effect here: {key.verdict.reason}" for key in active_keys(self, "no effect here")]


Source = str | os.PathLike[str] | Mapping[str, Any] | Config
"""What `Config.load` reads."""
