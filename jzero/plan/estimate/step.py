"""What a training step holds and sends on each GPU, worked out from its jaxpr: no compiler and no device is asked.

`jzero.plan.compile_step` asks the compiler, and takes as long as compiling does. This takes a trace of the step, about
a second, and is made for searching. Lasting state and traffic are exact. What lives inside the step comes from
`jzero.plan.estimate.liveness`. `benchmarks/closed_form_error.py` compares the peak with compiled programs of GPUs and
of CPUs, for models of eight kinds: it was within 15 %, mostly within 8 %, but for a chain of large products at stage 3
(18 % too low on GPUs) and, with jax 0.12, a Llama at stage 3 on CPUs (18 % too high). A mesh of CPUs gets the CPU
program's peak.

An update that is not elementwise, such as Muon's, may take more than is said here. Of one that is streamed from host
memory the pieces under way are added as if the step were fullest then, which is exact to some 10 %, or says up to a
third of a gigabyte too much.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import jax
import numpy as np
import optax
from jax.sharding import AbstractMesh, AxisType
from rich.table import Table

from jzero.base.types import Batch, LossFn, Mask, PyTree
from jzero.base.units import format_bytes
from jzero.config import Config
from jzero.config.config import Source
from jzero.errors import ConfigError
from jzero.explain.paper import paper_terms
from jzero.jaxpr import Program, called_program, trace
from jzero.jaxpr.devices import abstract_gpu
from jzero.jaxpr.primitives import SHARD_MAP
from jzero.jaxpr.walk import only_equation
from jzero.plan.estimate.liveness import ACTIVATIONS, CONSTANTS, GRADIENTS, WEIGHTS, Peak, peak
from jzero.plan.estimate.traced import Work, step_work
from jzero.plan.garbage import collection_put_off
from jzero.plan.hardware.figures import gpu_figures
from jzero.plan.hardware.links import Sent
from jzero.plan.memory_use import MemoryUse
from jzero.plan.training import Training
from jzero.sharding.mesh import AXES, n_groups, platform
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional
from jzero.zero.shapes import Trainable
from jzero.zero.step import train_step


@dataclass(frozen=True)
class ClosedForm:
    """Bytes of one GPU in one training step.

    Attributes:
        parameters: the lasting parameters, padding included.
        optimizer_state: what the optimizer keeps for them.
        batch: one batch and what else enters the step: model state, loss scale, counters.
        gradients: gradients at the moment when most is alive, like the next three.
        gathered_weights: parameters in the form in which compute reads them: gathered or cast.
        activations: what the forward pass kept for the backward pass, and what is being computed.
        rest: constants that loops keep, such as masks, and pieces of state that pass through from host memory.
        host: host memory for what is offloaded, of the state and in the step.
        sent: bytes sent, by kind of collective and mesh axes.
        work: what is computed and sent, for `jzero.plan.estimate.step_time`.
        memory_use: what is alive at each operation of the forward and backward pass, for `jzero.plan.render`.
        paper: what the ZeRO paper's formula says of the model states (Rajbhandari et al. 2020, section 3.1): 16 bytes
            a parameter for Adam in mixed precision, of which a stage divides its part.
    """

    parameters: int
    optimizer_state: int
    batch: int
    gradients: int
    gathered_weights: int
    activations: int
    rest: int
    host: int
    sent: tuple[Sent, ...]
    paper: Mapping[str, float]
    work: Work = field(repr=False)
    memory_use: MemoryUse = field(repr=False)

    @property
    def lasting(self) -> int:
        """What every step is given: parameters, optimizer state and batch; `Program.memory.argument`."""
        return self.parameters + self.optimizer_state + self.batch

    @property
    def peak(self) -> int:
        """The most that is alive at once; `Program.memory.peak`."""
        return self.lasting + self.gradients + self.gathered_weights + self.activations + self.rest

    @property
    def wire(self) -> Mapping[str, int]:
        """Bytes sent, by kind of collective, as in `Program.wire_bytes`."""
        return {kind: sum(s.n_bytes for s in self.sent if s.kind == kind) for kind in {s.kind: None for s in self.sent}}

    def to_json(self) -> str:
        """All of it as a JSON object."""
        sent = [s._asdict() for s in self.sent]
        totals = {"wire": self.wire, "lasting": self.lasting, "peak": self.peak}
        fields = {name: value for name, value in vars(self).items() if name not in ("work", "memory_use")}
        return json.dumps({**fields, "sent": sent, **totals})

    def table(self) -> Table:
        """The memory as a rich table beside the paper's formula; below it what is sent."""
        sent = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in self.wire.items())
        table = Table(title="Memory of one GPU in one step, closed form", caption=f"sent: {sent or 'nothing'}")
        table.add_column("part")
        table.add_column("bytes", justify="right")
        table.add_column("ZeRO paper", justify="right")
        parts = ("parameters", "optimizer_state", "batch", "gradients", "gathered_weights", "activations", "rest")
        for part in parts:
            paper = self.paper.get(part)
            table.add_row(
                part.replace("_", " "), format_bytes(getattr(self, part)), "-" if paper is None else format_bytes(paper)
            )
            if part == "batch":
                table.add_section()
        table.add_section()
        table.add_row("peak", format_bytes(self.peak), format_bytes(sum(self.paper.values())), style="bold")
        if self.host:
            table.add_row("host memory", format_bytes(self.host), "-")
        return table


@collection_put_off()
def estimate_step(
    *,
    model: object,
    loss_fn: LossFn,
    config: Source,
    sample_batch: Batch,
    n_gpus: int = 8,
    gpu: str = "h100-80g",
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Mask | None = None,
) -> ClosedForm:
    """Works out one training step on `n_gpus` GPUs from shapes alone, in about a second.

    Args:
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`; its world size is `n_gpus`.
        sample_batch: a pytree of arrays or `jax.ShapeDtypeStruct`s with leading dimension `train_batch_size`.
        n_gpus: the number of GPUs.
        gpu: whose kernels the program may call, such as cuDNN's attention: one of `jzero.plan.GPUS`, or the path of a
            file like theirs.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.

    Returns:
        Bytes by part, and bytes sent.

    Raises:
        JzeroError: whatever does not fit, in one sentence.

    Example:
        >>> from flax import nnx
        >>> import jax.numpy as jnp
        >>> estimate = estimate_step(
        ...     model=lambda rngs: nnx.Linear(512, 512, use_bias=False, rngs=rngs),
        ...     loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        ...     config={"train_batch_size": 64, "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}},
        ...     sample_batch=jax.ShapeDtypeStruct((64, 512), jnp.float32),
        ...     n_gpus=8,
        ... )
        >>> estimate.parameters == 4 * 512 * 512 // 8
        True
    """
    training = Training(model, loss_fn, Config.load(config), sample_batch, optimizer, trainable)
    return closed_form(abstract_functional(training, n_gpus, gpu))


def abstract_functional(training: Training, n_gpus: int, gpu: str = "h100-80g", gpus_per_node: int = 8) -> Functional:
    """The functional layer of `n_gpus` GPUs that not even a compiler knows, for `closed_form`; see `estimate_step`."""
    if n_gpus < 1:
        raise ConfigError(f"n_gpus is {n_gpus}; it must be at least 1.")
    groups = n_groups(training.config, n_gpus, gpus_per_node)
    target = gpu_figures(gpu).target
    device = abstract_gpu(None if target is None else target.compute_capability.rstrip("af"))
    types = (AxisType.Auto,) * len(AXES)
    mesh = AbstractMesh((groups, n_gpus // groups, 1), AXES, axis_types=types, abstract_device=device)
    return replace(training, config=training.config.resolve(world=n_gpus)).functional(mesh)


def closed_form(functional: Functional) -> ClosedForm:
    """Works out the training step of a `Functional`; see `estimate_step`."""
    state, spec = functional.state, functional.spec
    program, _ = trace(train_step(spec), state, functional.batch)
    sharded = only_equation(program, SHARD_MAP)  # loss and gradients
    n_params = len(jax.tree.leaves(state.params))
    inside = called_program(sharded)
    most = peak(
        inside,
        [i < n_params for i in range(len(sharded.invars))],
        overlap=spec.config.zero_optimization.overlaps_comm,
        on_cpu=platform(spec.mesh) == "cpu",
    )
    parameters, optimizer_state = _bytes_each(state.params), _bytes_each(state.opt_state)
    everything = _bytes_each(state) + _bytes_each(functional.batch)
    work = _work(program, functional, spec.mesh.shape)
    rest = spec.offload.streamed_bytes()
    return ClosedForm(
        parameters=parameters,
        optimizer_state=optimizer_state,
        batch=everything - parameters - optimizer_state,
        gradients=most.n_bytes[GRADIENTS],
        gathered_weights=most.n_bytes[WEIGHTS],
        activations=most.n_bytes[ACTIVATIONS],
        rest=most.n_bytes[CONSTANTS] + rest,
        host=most.host_bytes + _bytes_each(state, on_host=True),
        sent=_sent(work),
        paper=_paper(functional),
        work=work,
        memory_use=_memory_use(most, parameters, optimizer_state, everything - parameters - optimizer_state + rest),
    )


def _memory_use(most: Peak, parameters: int, optimizer_state: int, rest: int) -> MemoryUse:
    """The memory over the operations, with what is there all the time; the peak is the closed form's."""
    n_moments = max(map(len, most.over_time.values()), default=1)
    always = np.zeros(n_moments, np.int64)
    n_bytes = {
        "parameters": always + parameters,
        "optimizer_state": always + optimizer_state,
        "gradients": most.over_time.get(GRADIENTS, always),
        "gathered_weights": most.over_time.get(WEIGHTS, always),
        "activations": most.over_time.get(ACTIVATIONS, always),
        "rest": most.over_time.get(CONSTANTS, always) + rest,
    }
    peak = int(np.sum(list(n_bytes.values()), axis=0).max())
    return MemoryUse(n_bytes, holders=(), phases=(), allocated=peak)


def _work(program: Program, functional: Functional, axis_sizes: Mapping[str, int]) -> Work:
    """What one device computes and sends; the update passes over all of its state, wherever that lies."""
    state = functional.state
    n_bytes = lambda tree: _bytes_each(tree) + _bytes_each(tree, on_host=True)
    params = n_bytes(state.params)
    whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.params))
    return step_work(
        program,
        axis_sizes,
        state_bytes=params + n_bytes(state.opt_state),
        param_bytes=params,
        share=params / whole if whole else 0.0,
    )


def _bytes_each(tree: PyTree, *, on_host: bool = False) -> int:
    """Bytes of those abstract arrays that lie on one device, or of its part of those in host memory."""
    here = (x for x in jax.tree.leaves(tree) if (x.sharding.memory_kind == "pinned_host") == on_host)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in here)


def _sent(work: Work) -> tuple[Sent, ...]:
    """What one device sends in a step."""
    sent: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for block in work.blocks:
        for m in block.messages:
            sent[m.kind, m.axes] += block.times * m.n_bytes
    return tuple(Sent(*key, n_bytes) for key, n_bytes in sent.items())


def _paper(functional: Functional) -> dict[str, float]:
    """The paper's formula, by part."""
    n_params = sum(math.prod(p.shape) for p in jax.tree.leaves(functional.placements.params, is_leaf=is_placement))
    spec = functional.spec
    terms = paper_terms(spec.plan, spec.mesh.shape["shard"], spec.mesh.shape["replica"] if spec.two_level else 1)
    return {part: term.n_bytes(n_params) for part, term in terms._asdict().items()}
