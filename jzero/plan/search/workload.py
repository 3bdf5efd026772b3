"""What a plan is for: a run on a cluster, which it works out and compiles under any setting and batch size."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jzero.config import Config, ResolvedConfig, TrainingArguments
from jzero.config.resolve.auto import STAGE
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.scalars import is_auto
from jzero.errors import JzeroError
from jzero.plan.compiled.compile import compile_step
from jzero.plan.estimate.closed_form import abstract_functional
from jzero.plan.garbage import collection_put_off
from jzero.plan.hardware.cluster import Cluster
from jzero.plan.search.row import Row, closed_form_row, compiled_part
from jzero.plan.search.setting import Setting, with_setting
from jzero.zero.shapes import Trainable, adapted, model_width


@dataclass(frozen=True)
class Workload:
    """A run on a cluster.

    Attributes:
        cluster: the GPUs.
        config: as given, but for its stage, which is a number; may hold `"auto"`.
        model: see `jzero.initialize`; adapted when the workload is made, so that all settings share one trace of it.
        rematerialised: the same model with rematerialised blocks, likewise; None if there is none.
        arguments: what `"auto"` is filled from.
        hidden_size: the model's width; read off the parameters if None.
        rest: `loss_fn`, `sample_batch`, `optimizer` and `trainable`, as `jzero.initialize` takes them.
        memory_use: whether compiled programs tell how much memory they take when.
    """

    cluster: Cluster
    config: Config
    model: Any
    rematerialised: Any | None
    arguments: TrainingArguments | None
    hidden_size: int | None
    rest: Mapping[str, Any]
    memory_use: bool = False

    @collection_put_off()
    def __post_init__(self) -> None:
        adapt = lambda model: None if model is None else adapted(model, self.rest["loss_fn"], self.config)
        object.__setattr__(self, "model", adapt(self.model))
        object.__setattr__(self, "rematerialised", adapt(self.rematerialised))

    def as_given(self) -> Setting:
        """What the configuration says."""
        resolved = self._resolved(self.config, self.arguments)
        zero = resolved.zero_optimization
        offload = "nothing" if not zero.offloads_optimizer else "optimizer"
        return Setting(
            zero.stage,
            "optimizer and parameters" if zero.offloads_optimizer and zero.offloads_params else offload,
            resolved.train_micro_batch_size_per_gpu,
            resolved.gradient_accumulation_steps,
        )

    @collection_put_off()
    def estimate(self, setting: Setting, *, batch: bool) -> Row:
        """The closed form's row; `batch` says whether the setting has another batch than the configuration."""
        functional = abstract_functional(n_gpus=self.cluster.n_gpus, **self._with(setting, batch))
        return closed_form_row(setting, self.cluster, functional)

    def compile(self, row: Row, *, batch: bool) -> Row:
        """The same row with the compiled program's figures.

        Raises:
            JzeroError: the compiler fails.
        """
        cluster = self.cluster
        sizes = {"n_gpus": cluster.n_gpus, "gpus_per_node": cluster.gpus_per_node}
        what = self._with(row.setting, batch)
        try:
            program = compile_step(gpu=cluster.gpu, **sizes, memory_use=self.memory_use, **what)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0][:200]
            raise JzeroError(
                f"XLA cannot compile {row.setting} for {cluster.gpu} ({reason}); plan by the closed form alone "
                "(--closed-form), or for another GPU."
            ) from error
        return replace(row, compiled=compiled_part(program, cluster))

    def on(self, n_gpus: int, setting: Setting) -> "Workload":
        """The same run with so many GPUs and the batch of a setting, whose size in all follows from the two.

        Args:
            n_gpus: must fill nodes.
            setting: micro-batch and accumulation, which `estimate` and `compile` are then to be asked for.
        """
        rows = setting.micro_batch * setting.accumulation * n_gpus
        resized = lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        config = self.config.replaced({NAMES[0]: rows})
        sample = jax.tree.map(resized, self.rest["sample_batch"])
        cluster = replace(self.cluster, n_gpus=n_gpus)
        return replace(self, cluster=cluster, config=config, rest={**self.rest, "sample_batch": sample})

    def _with(self, setting: Setting, batch: bool) -> dict[str, Any]:
        arguments = self.arguments
        if batch and arguments is not None:  # which must agree with the configuration
            sizes = {"per_device_train_batch_size": setting.micro_batch}
            sizes["gradient_accumulation_steps"] = setting.accumulation
            arguments = arguments.model_copy(update=sizes)
        config = self._resolved(with_setting(self.config, setting, batch=batch), arguments)
        return {"config": config, "model": self.rematerialised if setting.remat else self.model, **self.rest}

    def _resolved(self, config: Config, arguments: TrainingArguments | None) -> ResolvedConfig:
        # A schedule may need the number of steps, which nobody knows here, and takes no memory.
        width = self.hidden_size or (lambda: model_width(self.model, self.rest["sample_batch"]))
        return config.model_copy(update={"scheduler": None}).resolve(
            world=self.cluster.n_gpus, training_arguments=arguments, hidden_size=width
        )


def workload(
    *,
    model: Any,
    loss_fn: Callable,
    config: "str | os.PathLike[str] | Mapping[str, Any] | Config",
    sample_batch: Any,
    gpu: str = "h100-80g",
    n_gpus: int = 8,
    gpus_per_node: int = 8,
    network: str = "",
    host_memory: int | None = None,
    rematerialised: Any | None = None,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Any | None = None,
    training_arguments: TrainingArguments | None = None,
    hidden_size: int | None = None,
) -> Workload:
    """A run on a cluster, from what `jzero.plan.plan` takes."""
    rest = {"loss_fn": loss_fn, "sample_batch": sample_batch, "optimizer": optimizer, "trainable": trainable}
    cluster = Cluster(gpu, n_gpus, gpus_per_node, network, host_memory)
    given = startable(Config.load(config), sample_batch)
    return Workload(cluster, given, model, rematerialised, training_arguments, hidden_size, rest)


def startable(config: Config, sample_batch: Any) -> Config:
    """A configuration whose stage and batch are open, with values to start a search from.

    A stage of `"auto"` becomes 3, where all can be offloaded. An open `train_micro_batch_size_per_gpu` needs a
    `train_batch_size`, which is that of the sample where the configuration does not say it.

    Args:
        config: as loaded.
        sample_batch: a pytree whose leaves have leading dimension `train_batch_size`.
    """
    values: dict[str, Any] = {STAGE: 3} if is_auto(config.zero_optimization.stage) else {}
    total, micro = (getattr(config, name) for name in NAMES[:2])
    leaves = jax.tree.leaves(sample_batch)
    if is_auto(micro) and (total is None or is_auto(total)) and leaves and jnp.ndim(leaves[0]):
        values[NAMES[0]] = leaves[0].shape[0]
    return config.replaced(values) if values else config
