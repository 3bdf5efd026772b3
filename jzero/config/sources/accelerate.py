"""Accelerate's configuration file: the DeepSpeed part in it, as Accelerate itself would hand it to DeepSpeed."""

from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

from jzero.base.types import Json
from jzero.config.schema.building import build
from jzero.config.schema.scalars import AUTO, Anything, Positive, Stage, Switch, Text, choice, is_auto
from jzero.config.schema.section import Mapped, Section, Trace

Device = Annotated[str, choice("none", "cpu", "nvme")]


class AccelerateDeepSpeed(Section):
    """`deepspeed_config` of Accelerate's file."""

    deepspeed_config_file: Text | None = None
    zero_stage: Stage = 2
    gradient_accumulation_steps: Positive = 1
    gradient_clipping: Anything = None
    offload_optimizer_device: Device = "none"
    offload_optimizer_nvme_path: Text | None = None
    offload_param_device: Device = "none"
    offload_param_nvme_path: Text | None = None
    zero3_init_flag: Switch = False
    zero3_save_16bit_model: Switch = False
    zero_quantized_weights: Switch = False
    deepspeed_hostfile: Anything = None
    deepspeed_multinode_launcher: Anything = None
    deepspeed_exclusion_filter: Anything = None
    deepspeed_inclusion_filter: Anything = None
    deepspeed_moe_layer_cls_names: Anything = None


class AccelerateFile(Section):
    """Accelerate's file; all but the first two say where and how it launches."""

    @classmethod
    def modernise(cls, data: dict[str, Json]) -> Iterator[Mapped]:
        """The oldest files have a switch in place of `mixed_precision`."""
        if "fp16" in data:
            switch = data.pop("fp16")
            yield Mapped(
                "mixed_precision", data.setdefault("mixed_precision", "fp16" if switch else "no"), "fp16", switch
            )

    @classmethod
    def rewrite(cls, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """YAML reads a bare `no` as false."""
        return {**data, "mixed_precision": "no"} if data.get("mixed_precision") is False else data

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """There is no fp8."""
        if values.get("mixed_precision") == "fp8":
            yield "mixed_precision", "= 'fp8' is refused: use bf16 or fp16"

    deepspeed_config: AccelerateDeepSpeed
    mixed_precision: Annotated[str, choice("no", "fp16", "bf16", "fp8")] = "no"
    command_file: Anything = None
    commands: Anything = None
    compute_environment: Anything = None
    debug: Anything = None
    distributed_type: Anything = None
    downcast_bf16: Anything = None
    dynamo_backend: Anything = None
    dynamo_config: Anything = None
    enable_cpu_affinity: Anything = None
    fp8_config: Anything = None
    fsdp_config: Anything = None
    gpu_ids: Anything = None
    ipex_config: Anything = None
    machine_rank: Anything = None
    main_process_ip: Anything = None
    main_process_port: Anything = None
    main_training_function: Anything = None
    megatron_lm_config: Anything = None
    mpirun_config: Anything = None
    num_machines: Anything = None
    num_processes: Anything = None
    parallelism_config: Anything = None
    rdzv_backend: Anything = None
    same_network: Anything = None
    tpu_config: Anything = None
    tpu_env: Anything = None
    tpu_name: Anything = None
    tpu_use_cluster: Anything = None
    tpu_use_sudo: Anything = None
    tpu_vm: Anything = None
    tpu_zone: Anything = None
    use_cpu: Anything = None
    use_mps_device: Anything = None


class Accelerate(NamedTuple):
    """What Accelerate's file says: a DeepSpeed configuration, or the path of one that it adds to; and notes."""

    deepspeed: dict[str, Json]
    deepspeed_file: str | None
    notes: list[str]

    def over(self, data: Mapping[str, Json]) -> dict[str, Json]:
        """The DeepSpeed file, which has the first word, with the mixed precision of Accelerate's where it has none."""
        merged = dict(data)
        for name in ("fp16", "bf16"):
            section = data.get(name)
            wanted = self.deepspeed.get(name)
            silent = section is None or (isinstance(section, Mapping) and is_auto(section.get("enabled")))
            if wanted and silent:
                merged[name] = {**(section or {}), "enabled": True}
        return merged


def read_accelerate(data: Mapping[str, Json], file: str) -> Accelerate:
    """Reads Accelerate's configuration.

    Args:
        data: The mapping, with `deepspeed_config` in it.
        file: What to call it in messages.

    Raises:
        ConfigError: One sentence for each thing that is wrong.

    Example:
        >>> file = {"deepspeed_config": {"zero_stage": 3}, "mixed_precision": "bf16"}
        >>> read_accelerate(file, "accelerate.yaml").deepspeed
        {'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': 1,
         'zero_optimization': {'stage': 3}, 'bf16': {'enabled': True}}
    """
    trace = Trace()
    accelerate = build(AccelerateFile, data, file=file, trace=trace)
    plugin, notes = accelerate.deepspeed_config, trace.notes
    precision = {} if accelerate.mixed_precision == "no" else {accelerate.mixed_precision: {"enabled": True}}
    if accelerate.num_processes is not None:
        notes.append(
            f"`num_processes` = {accelerate.num_processes} is for Accelerate's launcher and has no effect here"
        )
    if plugin.deepspeed_config_file is not None:
        beside = sorted(plugin.model_fields_set - {"deepspeed_config_file", "zero3_init_flag"})
        notes += [f"`deepspeed_config.{name}` has no effect beside `deepspeed_config_file`" for name in beside]
        return Accelerate(precision, plugin.deepspeed_config_file, notes)
    zero: dict[str, Json] = {"stage": plugin.zero_stage}
    for name in ("offload_optimizer", "offload_param"):
        if (device := getattr(plugin, f"{name}_device")) != "none":
            zero[name] = {"device": device, "nvme_path": getattr(plugin, f"{name}_nvme_path")}
    if plugin.zero3_save_16bit_model is True:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if plugin.zero_quantized_weights is True:
        zero["zero_quantized_weights"] = True
    clipping = plugin.gradient_clipping
    deepspeed = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": plugin.gradient_accumulation_steps,
        **({} if clipping in (None, "none") else {"gradient_clipping": clipping}),
        "zero_optimization": zero,
        **precision,
    }
    return Accelerate(deepspeed, None, notes)
