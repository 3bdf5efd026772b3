"""The plan of a run on a cluster: every stage, what it can offload and share in groups, and which of them to take."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Unpack

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.ops.attend import paths_taken
from jzero.plan.compiled.topology import can_compile_for
from jzero.plan.hardware.cluster import USABLE, Cluster
from jzero.plan.search.recommendation import Recommendation, cheapest, recommend
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting, changes, fallbacks, settings
from jzero.plan.search.workload import RunOptions, Workload, workload_of

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
        attention: the paths of `jzero.attention` that the model takes on these GPUs, such as "cudnn"; none where it
            does not call it.
    """

    cluster: Cluster
    n_params: int
    base: Setting
    rows: tuple[Row, ...]
    refused: Mapping[Setting, str]
    recommendation: Recommendation
    attention: tuple[str, ...]

    @property
    def changes(self) -> dict[str, Json]:
        """The keys of the DeepSpeed configuration that the recommended setting sets, by dotted path."""
        chosen = self.recommendation.setting
        return {} if chosen is None else changes(chosen, self.base)

    def to_dict(self) -> dict[str, Json]:
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
            "attention": list(self.attention),
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


@dataclass
class _Planner:
    """The rows of a plan as they are worked out, each once.

    Attributes:
        run: what is planned.
        base: the run as given.
        compiles: whether what is recommended is confirmed by a compiler.
        report: is told what is being worked out.
    """

    run: Workload
    base: Setting
    compiles: bool
    report: Callable[[str], None]
    rows: dict[Setting, Row] = field(default_factory=dict)
    refused: dict[Setting, str] = field(default_factory=dict)

    def estimate(self, setting: Setting) -> Row | None:
        """The closed form's row; None for a setting that is refused."""
        if setting not in self.rows and setting not in self.refused:
            self.report(f"{setting}, closed form")
            try:
                self.rows[setting] = self.run.estimate(setting, batch=self._has_another_batch(setting))
            except ConfigError as error:
                self.refused[setting] = str(error)
        return self.rows.get(setting)

    def confirm(self, row: Row) -> Row:
        """The same row with the compiled program's figures."""
        if not self.compiles or row.compiled:
            return row
        setting, cluster = row.setting, self.run.cluster
        self.report(f"{setting}, compiling for {cluster.n_gpus} {cluster.gpu}")
        self.rows[setting] = self.run.compile(row, batch=self._has_another_batch(setting))
        return self.rows[setting]

    def on(self, setting: Setting, n_gpus: int) -> Row | None:
        """The closed form's row on another number of GPUs; None for a setting that is refused there."""
        self.report(f"{setting} on {n_gpus} GPUs, closed form")
        try:
            return self.run.on(n_gpus, setting).estimate(setting, batch=True)
        except ConfigError:
            return None

    def cheapest(self, table: Sequence[Setting]) -> Row | None:
        """The cheapest row that fits, of some settings and their fallbacks."""
        elasticity = self.run.config.elasticity
        divisible = not (elasticity and elasticity.enabled)  # which decides the batch sizes
        return cheapest(
            table,
            lambda setting: fallbacks(setting, divisible=divisible, remat=self.run.can_rematerialise),
            self.estimate,
            self.confirm if self.compiles else None,
        )

    def _has_another_batch(self, setting: Setting) -> bool:
        return setting.micro_batch != self.base.micro_batch


def plan(
    *,
    stages: Sequence[int] = (0, 1, 2, 3),
    compiled: Compile | None = None,
    memory_use: bool = False,
    report: Callable[[str], None] = lambda _: None,
    **run: Unpack[RunOptions],
) -> Plan:
    """Plans a run: what each stage would hold and send, with and without offloading, and which of them to take.

    Every setting is worked out by the closed form, about a second each. The recommended one is confirmed by a compiler
    where JAX's CUDA plugin is installed; no GPU is needed.

    Args:
        stages: which stages to look at.
        compiled: which settings to compile: "nothing", "recommended" or "all"; "recommended" by default, where the
            plugin is installed and XLA can compile for the GPU.
        memory_use: whether what is compiled also tells how much memory it takes when, which `jzero.plan.render` draw.
        report: is told what is being worked out.
        **run: `model`, `loss_fn`, `config`, `sample_batch`, `n_gpus` and more: what is planned and on what cluster, see
            `jzero.plan.RunOptions`.

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
    if not stages or set(stages) - {0, 1, 2, 3}:
        raise ConfigError(f"stages {', '.join(map(str, stages)) or '(none)'}: give one or more of 0, 1, 2 and 3.")
    what = workload_of(memory_use=memory_use, **run)
    compiled = compiled or ("recommended" if can_compile_for(what.cluster.gpu) else "nothing")
    planner = _Planner(what, what.as_given(), compiled != "nothing", report)
    with paths_taken() as paths:
        return _planned(planner, stages, paths, compile_all=compiled == "all")


def _planned(planner: _Planner, stages: Sequence[int], paths: Collection[str], *, compile_all: bool) -> Plan:
    """Works out every setting of some stages, and what is cheapest of them."""
    rows, base = planner.rows, planner.base
    table = list(settings(base, stages, planner.run.group))
    for setting in table:
        row = planner.estimate(setting)
        if row is not None and compile_all:
            planner.confirm(row)
    if not rows:
        raise ConfigError(f"no stage can be planned: {next(iter(planner.refused.values()))}")
    chosen = planner.cheapest(table)
    remat = planner.run.can_rematerialise
    found = recommend(chosen, list(rows.values()), base=base, stages=stages, remat=remat, on=planner.on)
    shown = [row for setting, row in rows.items() if setting in table or row is chosen]
    return Plan(
        planner.run.cluster, shown[0].n_params, base, tuple(shown), planner.refused, found, tuple(sorted(paths))
    )
