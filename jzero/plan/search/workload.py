"""What a plan is for: a run on a cluster, which it works out and compiles under any setting and batch size."""

from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from jzero.base.types import Batch, LossFn, Mask
from jzero.config import Config, TrainingArguments
from jzero.config.config import Source
from jzero.config.resolve.auto import STAGE
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.scalars import is_auto
from jzero.errors import JzeroError
from jzero.plan.compiled.compile import compile_training
from jzero.plan.estimate.step import abstract_functional
from jzero.plan.garbage import collection_put_off
from jzero.plan.hardware.cluster import Cluster
from jzero.plan.search.row import Row, closed_form_row, compiled_part
from jzero.plan.search.setting import Groups, Setting, with_setting
from jzero.plan.training import Training
from jzero.sharding.mesh import n_groups
from jzero.zero.shapes import Trainable

_CLUSTER = {"gpu": "h100-80g", "n_gpus": 8, "gpus_per_node": 8, "network": "", "host_memory": None}


class ClusterOptions(TypedDict):
    """What `RunOptions` says of a cluster beside the number of GPUs."""

    gpu: NotRequired[str]
    gpus_per_node: NotRequired[int]
    network: NotRequired[str]
    host_memory: NotRequired[int | None]


class RunOptions(ClusterOptions):
    """A run on a cluster, by keyword: what `jzero.plan.plan` and `jzero.plan.max_batch` take.

    Attributes:
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`. A plan sets its stage, offloading and
            batch sizes; everything else stays.
        sample_batch: a pytree of arrays or `jax.ShapeDtypeStruct`s with leading dimension `train_batch_size`.
        gpu: a name from `jzero.plan.GPUS`, or the path of a file like theirs, see `jzero.plan.gpu_figures`; "h100-80g"
            by default.
        n_gpus: the number of GPUs; 8 by default.
        gpus_per_node: how many of them share a host; 8 by default.
        network: what joins the nodes, such as "100gb-roce", see `jzero.plan.Cluster`.
        host_memory: bytes of each node that offloading may take; without it, host memory is shown and limits nothing.
        rematerialised: the same model with rematerialised blocks, if there is one, to be tried too.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.
        training_arguments: what `"auto"` is filled from.
        hidden_size: the model's width, for `"auto"` sizes; read off the parameters when not given.
    """

    model: object
    loss_fn: LossFn
    config: Source
    sample_batch: Batch
    n_gpus: NotRequired[int]
    rematerialised: NotRequired[object | None]
    optimizer: NotRequired[optax.GradientTransformation | None]
    trainable: NotRequired[Trainable | Mask | None]
    training_arguments: NotRequired[TrainingArguments | None]
    hidden_size: NotRequired[int | None]


class _Grouped(TypedDict, total=False):
    """What a `Setting` says of groups."""

    groups: Groups
    group: int


@dataclass(frozen=True)
class Workload:
    """A run on a cluster.

    Attributes:
        cluster: the GPUs.
        training: what is trained; its configuration's stage is a number. Its models are adapted when the workload is
            made, so that all settings share one trace of each.
        memory_use: whether compiled programs tell how much memory they take when.
    """

    cluster: Cluster
    training: Training
    memory_use: bool = False

    @collection_put_off()
    def __post_init__(self) -> None:
        object.__setattr__(self, "training", self.training.adapted())

    @property
    def config(self) -> Config:
        """As given, but for its stage; may hold `"auto"`."""
        return self.training.config

    @property
    def can_rematerialise(self) -> bool:
        """Whether there is a model with rematerialised blocks to try."""
        return self.training.rematerialised is not None

    def as_given(self) -> Setting:
        """What the configuration says."""
        resolved = self.training.resolved(self.cluster.n_gpus)
        zero = resolved.zero_optimization
        offload = "nothing" if not zero.offloads_optimizer else "optimizer"
        return Setting(
            zero.stage,
            "optimizer and parameters" if zero.offloads_optimizer and zero.offloads_params else offload,
            resolved.train_micro_batch_size_per_gpu,
            resolved.gradient_accumulation_steps,
            **self._groups(resolved),
        )

    @property
    def group(self) -> int:
        """GPUs of the groups to look at: as the configuration says, or a node's; 1 where that is all of them."""
        zero = self.config.zero_optimization
        group = zero.shard_group or zero.hpz_group or self.cluster.gpus_per_node
        return group if group < self.cluster.n_gpus and self.cluster.n_nodes > 1 else 1

    def _groups(self, config: Config) -> _Grouped:
        """What the configuration says of groups, where there are several."""
        zero, n_gpus = config.zero_optimization, self.cluster.n_gpus
        groups = n_groups(config, n_gpus, self.cluster.gpus_per_node)
        if groups == 1:
            return {}
        return {"groups": "MiCS" if zero.shard_group else "two levels", "group": n_gpus // groups}

    @collection_put_off()
    def estimate(self, setting: Setting, *, batch: bool) -> Row:
        """The closed form's row; `batch` says whether the setting has another batch than the configuration."""
        cluster = self.cluster
        functional = abstract_functional(self._with(setting, batch), cluster.n_gpus, cluster.gpu, cluster.gpus_per_node)
        return closed_form_row(setting, cluster, functional)

    def compile(self, row: Row, *, batch: bool) -> Row:
        """The same row with the compiled program's figures.

        Raises:
            JzeroError: the compiler fails.
        """
        cluster = self.cluster
        what = self._with(row.setting, batch)
        try:
            program = compile_training(training=what, cluster=cluster, memory_use=self.memory_use)
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
        sample = jax.tree.map(resized, self.training.sample_batch)
        training = replace(self.training, config=config, sample_batch=sample)
        return replace(self, cluster=replace(self.cluster, n_gpus=n_gpus), training=training)

    def _with(self, setting: Setting, batch: bool) -> Training:
        """What is trained under a setting, with a configuration that is resolved."""
        training, arguments = self.training, self.training.training_arguments
        if batch and arguments is not None:  # which must agree with the configuration
            sizes = {"per_device_train_batch_size": setting.micro_batch}
            sizes["gradient_accumulation_steps"] = setting.accumulation
            arguments = arguments.model_copy(update=sizes)
        changed = replace(
            training, config=with_setting(self.config, setting, batch=batch), training_arguments=arguments
        )
        model = training.rematerialised if setting.remat else training.model
        return replace(changed, config=changed.resolved(self.cluster.n_gpus), model=model)


def workload_of(*, memory_use: bool = False, **run: Unpack[RunOptions]) -> Workload:
    """A run on a cluster, from what `jzero.plan.plan` takes.

    Args:
        memory_use: whether compiled programs tell how much memory they take when.
        **run: what is planned and on what cluster, see `RunOptions`.
    """
    options: dict[str, Any] = dict(run)
    cluster = Cluster(**{name: options.pop(name, value) for name, value in _CLUSTER.items()})
    given = startable(Config.load(options.pop("config")), run["sample_batch"])
    return Workload(cluster, Training(config=given, **options), memory_use)


def startable(config: Config, sample_batch: Batch) -> Config:
    """A configuration whose stage and batch are open, with values to start a search from.

    A stage of `"auto"` becomes 3, where all can be offloaded. An open `train_micro_batch_size_per_gpu` needs a
    `train_batch_size`, which is that of the sample where the configuration does not say it.

    Args:
        config: as loaded.
        sample_batch: a pytree whose leaves have leading dimension `train_batch_size`.
    """
    values: dict[str, int] = {STAGE: 3} if is_auto(config.zero_optimization.stage) else {}
    total, micro = (getattr(config, name) for name in NAMES[:2])
    leaves = jax.tree.leaves(sample_batch)
    if is_auto(micro) and (total is None or is_auto(total)) and leaves and jnp.ndim(leaves[0]):
        values[NAMES[0]] = leaves[0].shape[0]
    return config.replaced(values) if values else config
