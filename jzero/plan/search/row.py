"""One line of a plan: what a setting holds and sends on each GPU, and whether that fits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax

from jzero.base.types import Json
from jzero.base.units import format_bytes
from jzero.explain.layouts import Layouts, parameter_layouts
from jzero.plan.compiled.collectives import link_traffic
from jzero.plan.compiled.program import Program
from jzero.plan.estimate.step import ClosedForm, closed_form
from jzero.plan.estimate.step_time import closed_form_time
from jzero.plan.hardware.cluster import Cluster
from jzero.plan.hardware.links import LinkTraffic
from jzero.plan.hardware.pace import StepTime
from jzero.plan.memory_use import PARTS, MemoryUse
from jzero.plan.search.setting import Setting
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional
from jzero.zero.stages import Gather


@dataclass(frozen=True)
class Compiled:
    """What the compiled program says of a setting.

    Attributes:
        peak: bytes of one GPU, as `jzero.plan.Memory.peak`.
        host: bytes of host memory for one GPU.
        wire: bytes that one GPU sends.
        overlapped_share: of the payload bytes, those that travel beside matrix products.
        time: of a step, with the cluster's network.
        program: all of it; None where only these figures are known.
    """

    peak: int
    host: int
    wire: LinkTraffic
    overlapped_share: float
    time: StepTime
    program: Program | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Row:
    """One setting. Bytes are those of one GPU in one step.

    Attributes:
        setting: which one.
        cluster: the GPUs.
        n_params: parameters of the model.
        bytes_by_part: the closed form's, by the names in `PARTS`; `rest` is the batch, model state, and constants.
        divided: how much of them gets less with more GPUs: what the stage divides.
        host: host memory that offloaded state and gradients take, for one GPU.
        to_device: bytes that come from the host in a step, over PCIe.
        to_host: bytes that go back.
        wire: bytes sent, by the closed form.
        paper: the ZeRO paper's formula, by part.
        estimated: the closed form may leave something out: what streams from host memory, or what XLA keeps of two
            micro-batches at once where it overlaps the loop over them.
        closed_form_time: of a step, by the closed form.
        compiled: what the compiled program says; None where none was compiled.
        layouts: which GPU holds which part of each parameter.
        closed_form_memory_use: what is alive when in the forward and backward pass, by the closed form.
    """

    setting: Setting
    cluster: Cluster
    n_params: int
    bytes_by_part: Mapping[str, int]
    divided: int
    host: int
    to_device: int
    to_host: int
    wire: LinkTraffic
    paper: Mapping[str, float]
    estimated: bool
    closed_form_time: StepTime
    compiled: Compiled | None = None
    layouts: Layouts | None = field(default=None, repr=False)
    closed_form_memory_use: MemoryUse | None = field(default=None, repr=False)

    @property
    def closed_form_peak(self) -> int:
        """The most that is alive at once, by the closed form."""
        return sum(self.bytes_by_part.values())

    @property
    def peak(self) -> int:
        """The most that is alive at once: the compiled program's, where there is one."""
        return self.compiled.peak if self.compiled else self.closed_form_peak

    @property
    def time(self) -> StepTime:
        """How long a step takes: the compiled program, where there is one."""
        return self.compiled.time if self.compiled else self.closed_form_time

    @property
    def memory_use(self) -> MemoryUse | None:
        """What is alive when: in the compiled program, where that was asked for, or else by the closed form."""
        program = self.compiled.program if self.compiled else None
        return program.memory_use if program and program.memory_use else self.closed_form_memory_use

    @property
    def headroom(self) -> int:
        """Usable bytes that the peak leaves; negative where it does not fit."""
        return self.cluster.usable - self.peak

    @property
    def fits(self) -> bool:
        """Whether the peak is within the usable memory, and what is offloaded within the host's, as far as known."""
        return self.headroom >= 0 and self.host_headroom >= 0

    @property
    def host_per_node(self) -> int:
        """Host memory that all GPUs of a node take."""
        return (self.compiled.host if self.compiled else self.host) * self.cluster.gpus_per_node

    @property
    def host_headroom(self) -> float:
        """Bytes of a node's host memory that are left; infinite where it is not known how much there is."""
        limit = self.cluster.host_memory
        return math.inf if limit is None else limit - self.host_per_node

    @property
    def shortfall(self) -> str:
        """By how much it does not fit."""
        if self.headroom < 0:
            return format_bytes(-self.headroom)
        return f"{format_bytes(-self.host_headroom)} of host memory per node"

    def to_dict(self) -> dict[str, Json]:
        """All of it, ready for JSON."""
        compiled = self.compiled and {
            "peak": self.compiled.peak,
            "host": self.compiled.host,
            "wire": vars(self.compiled.wire),
            "overlapped_share": self.compiled.overlapped_share,
            "time": vars(self.compiled.time),
        }
        return {
            **vars(self.setting),
            "source": "compiled" if self.compiled else "closed form",
            "estimated": self.estimated and not self.compiled,
            "bytes": dict(self.bytes_by_part),
            "closed_form_peak": self.closed_form_peak,
            "peak": self.peak,
            "room": self.headroom,
            "fits": self.fits,
            "host_per_node": self.host_per_node,
            "pcie": {"to_device": self.to_device, "to_host": self.to_host},
            "wire": vars(self.wire),
            "time": vars(self.time),
            "closed_form_time": vars(self.closed_form_time),
            "paper": dict(self.paper),
            "compiled": compiled,
        }


def closed_form_row(setting: Setting, cluster: Cluster, functional: Functional) -> Row:
    """A row from the closed form.

    Args:
        setting: which one.
        cluster: the GPUs.
        functional: the step with that setting, from `jzero.plan.estimate.step.abstract_functional`.
    """
    found, spec = closed_form(functional), functional.spec
    parts = {name: getattr(found, name) for name in PARTS}
    parts["rest"] += found.batch
    here = [x for x in jax.tree.leaves(functional.state) if x.sharding.memory_kind != PINNED_HOST]
    divided = sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in here
        if not x.sharding.is_fully_replicated
    )
    return Row(
        setting,
        cluster,
        sum(math.prod(p.shape) for p in jax.tree.leaves(functional.placements.params, is_leaf=is_placement)),
        parts,
        divided + (parts["gradients"] if spec.plan.scatters_at_use else 0),
        found.host,
        functional.host_budget.to_device,
        functional.host_budget.to_host,
        cluster.wire(found.sent, spec.mesh.shape),
        found.paper,
        setting.offload != "nothing" or _may_overlap_micro_batches(functional),
        _time(found, cluster, functional),
        layouts=parameter_layouts(functional),
        closed_form_memory_use=found.memory_use,
    )


def _time(found: ClosedForm, cluster: Cluster, functional: Functional) -> StepTime:
    mesh_shape, zero = functional.spec.mesh.shape, functional.spec.config.zero_optimization
    return closed_form_time(
        found.work,
        {axes: cluster.group(axes, mesh_shape) for axes in {s.axes for s in found.sent}},
        cluster.figures,
        # With parameters in host memory a gradient leaves for it at once, which its scatter has to wait for.
        pipelined=functional.spec.plan.gather is Gather.AT_USE and zero.overlaps_comm and not zero.offloads_params,
        to_device=functional.host_budget.to_device,
        to_host=functional.host_budget.to_host,
    )


def _may_overlap_micro_batches(functional: Functional) -> bool:
    """Loops over layers that gather ahead inside the loop over micro-batches: XLA may pipeline the outer one too."""
    config = functional.spec.config
    loops = config.gradient_accumulation_steps > 1 and bool(functional.scanned)
    return loops and config.zero_optimization.overlaps_comm


def compiled_part(program: Program, cluster: Cluster) -> Compiled:
    """What a row needs of a program that was compiled for a cluster."""
    memory = program.memory
    return Compiled(
        memory.peak,
        memory.host_argument + memory.host_temp,
        link_traffic(program.collectives),
        program.overlapped_share(),
        program.step_time(cluster.figures),
        program,
    )
