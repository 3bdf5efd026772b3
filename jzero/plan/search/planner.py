"""The plan of a run on a cluster: every stage and what it can offload, side by side, and which of them to take."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import optax

from jzero.config import Config, TrainingArguments
from jzero.errors import ConfigError
from jzero.plan.compiled.topology import can_compile_for
from jzero.plan.hardware.cluster import USABLE, Cluster
from jzero.plan.search.recommend import Recommendation, cheapest, recommend
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting, changes, fallbacks, settings
from jzero.plan.search.workload import Workload, startable
from jzero.zero.shapes import Trainable

Compile = Literal["nothing", "recommended", "all"]


@dataclass(frozen=True)
class Plan:
    """What `plan` found.

    Attributes:
        cluster: the GPUs.
        n_params: parameters of the model.
        base: the run as given.
        rows: the settings that were looked at: every stage with what it can offload, and the recommended setting,
            should that be another.
        refused: settings that the configuration or the optimizer does not allow, and why.
        recommendation: which to take, or what to change.
    """

    cluster: Cluster
    n_params: int
    base: Setting
    rows: tuple[Row, ...]
    refused: Mapping[Setting, str]
    recommendation: Recommendation

    @property
    def changes(self) -> dict[str, Any]:
        """The keys of the DeepSpeed configuration that the recommended setting sets, by dotted path."""
        chosen = self.recommendation.setting
        return {} if chosen is None else changes(chosen, self.base)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON. Sizes in bytes, times in seconds; those of rows are one GPU's in one step."""
        chosen = self.recommendation.setting
        return {
            "cluster": {
                **vars(self.cluster),
                "nodes": self.cluster.n_nodes,
                "memory": self.cluster.memory,
                "usable": self.cluster.usable,
                "usable_share": USABLE,
            },
            "n_params": self.n_params,
            "base": vars(self.base),
            "rows": [row.to_dict() for row in self.rows],
            "refused": [{**vars(setting), "reason": reason} for setting, reason in self.refused.items()],
            "recommendation": {
                "setting": chosen and vars(chosen),
                "reason": self.recommendation.reason,
                "advice": list(self.recommendation.advice),
                "changes": self.changes,
            },
        }


def plan(
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
    stages: Sequence[int] = (0, 1, 2, 3),
    compiled: Compile | None = None,
    rematerialised: Any | None = None,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Any | None = None,
    training_arguments: TrainingArguments | None = None,
    hidden_size: int | None = None,
    memory_use: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plans a run: what each stage would hold and send, with and without offloading, and which of them to take.

    Every setting is worked out by the closed form, about a second each. The recommended one is confirmed by a compiler
    where JAX's CUDA plugin is installed; no GPU is needed.

    Args:
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`. The plan sets its stage, offloading
            and batch sizes; everything else stays.
        sample_batch: a pytree of arrays or `jax.ShapeDtypeStruct`s with leading dimension `train_batch_size`.
        gpu: a name from `jzero.plan.GPUS`, or the path of a file like theirs, see `jzero.plan.gpu_figures`.
        n_gpus: the number of GPUs.
        gpus_per_node: how many of them share a host.
        network: what joins the nodes, such as "100gb-roce", see `jzero.plan.Cluster`.
        host_memory: bytes of each node that offloading may take; without it, host memory is shown and limits nothing.
        stages: which stages to look at.
        compiled: which settings to compile: "nothing", "recommended" or "all"; "recommended" by default, where the
            plugin is installed and XLA can compile for the GPU.
        rematerialised: the same model with rematerialised blocks, if there is one, to be tried too.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.
        training_arguments: what `"auto"` is filled from.
        hidden_size: the model's width, for `"auto"` sizes; read off the parameters when not given.
        memory_use: whether what is compiled also tells how much memory it takes when, which `jzero.plan.render` draw.
        report: is told what is being worked out.

    Returns:
        The plan.

    Raises:
        JzeroError: whatever does not fit, in one sentence.

    Example:
        >>> from flax import nnx
        >>> import jax, jax.numpy as jnp
        >>> found = plan(
        ...     model=lambda rngs: nnx.Linear(512, 512, use_bias=False, rngs=rngs),
        ...     loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        ...     config={"train_batch_size": 64, "optimizer": {"type": "AdamW"}},
        ...     sample_batch=jax.ShapeDtypeStruct((64, 512), jnp.float32),
        ...     compiled="nothing",
        ... )
        >>> found.recommendation.setting.stage, found.rows[1].bytes_by_part["parameters"]
        (0, 131072)
    """
    cluster = Cluster(gpu, n_gpus, gpus_per_node, network, host_memory)
    if not stages or set(stages) - {0, 1, 2, 3}:
        raise ConfigError(f"stages {', '.join(map(str, stages)) or '(none)'}: give one or more of 0, 1, 2 and 3.")
    given = startable(Config.load(config), sample_batch)
    rest = {"loss_fn": loss_fn, "sample_batch": sample_batch, "optimizer": optimizer, "trainable": trainable}
    run = Workload(cluster, given, model, rematerialised, training_arguments, hidden_size, rest, memory_use)
    base = run.as_given()
    compiled = compiled or ("recommended" if can_compile_for(gpu) else "nothing")
    rows: dict[Setting, Row] = {}
    refused: dict[Setting, str] = {}
    compiling = f"compiling for {n_gpus} {gpu}"

    def estimate(setting: Setting) -> Row | None:
        if setting not in rows and setting not in refused:
            report(f"{setting}, closed form")
            try:
                rows[setting] = run.estimate(setting, batch=setting.micro_batch != base.micro_batch)
            except ConfigError as error:
                refused[setting] = str(error)
        return rows.get(setting)

    def confirm(row: Row) -> Row:
        if compiled == "nothing" or row.compiled:
            return row
        report(f"{row.setting}, {compiling}")
        rows[row.setting] = run.compile(row, batch=row.setting.micro_batch != base.micro_batch)
        return rows[row.setting]

    table = list(settings(base, stages))
    for setting in table:
        row = estimate(setting)
        if row is not None and compiled == "all":
            confirm(row)
    if not rows:
        raise ConfigError(f"no stage can be planned: {next(iter(refused.values()))}")
    divisible = not (given.elasticity and given.elasticity.enabled)  # which decides the batch sizes
    remat = rematerialised is not None
    chosen = cheapest(
        table,
        lambda setting: fallbacks(setting, divisible=divisible, remat=remat),
        estimate,
        None if compiled == "nothing" else confirm,
    )

    def on(setting: Setting, n_gpus: int) -> Row | None:
        report(f"{setting} on {n_gpus} GPUs, closed form")
        try:
            return run.on(n_gpus, setting).estimate(setting, batch=True)
        except ConfigError:
            return None

    found = recommend(chosen, list(rows.values()), base=base, stages=stages, remat=remat, on=on)
    shown = [row for setting, row in rows.items() if setting in table or row is chosen]
    return Plan(cluster, shown[0].n_params, base, tuple(shown), refused, found)
