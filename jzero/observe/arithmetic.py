"""The floating-point operations that training a model asks for, whatever the program then runs.

They are counted in the loss's jaxpr: matrix products, convolutions and attention; a product forward, and one more
backward for each operand whose gradient is needed. What is recomputed counts once, what a mask of attention hides does
not count, and the compiler is not asked: its own count knows no loops and no kernels of others.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

import jax

from jzero.jaxpr import Equation, Program, called_program, interpret, name_of, scan_arity
from jzero.jaxpr.arithmetic import product_flops
from jzero.jaxpr.devices import counting
from jzero.jaxpr.facts import follow, settled
from jzero.jaxpr.params import branches_of, flash_attention_of, rounds, while_of
from jzero.jaxpr.primitives import COND, FLASH_ATTENTION, INLINED, SCAN, UNCOUNTED, WHILE
from jzero.jaxpr.shares import share_needed
from jzero.ops.visibility import Rule, share_visible
from jzero.sharding.mesh import n_data_shards
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional
from jzero.zero.shapes import local_shapes, traced_loss

Pairs: TypeAlias = Literal["visible", "all"]
"""Which pairs of a query and a key attention is counted with: those that its mask shows, or the whole square."""


class ModelFlops(NamedTuple):
    """Floating-point operations of one training step over all devices, a multiply-add being two.

    Attributes:
        forward: of the loss.
        backward: of the gradients of what is trained.
        uncounted: operations that are not counted, or not wholly, and why.
    """

    forward: int
    backward: int
    uncounted: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Both together."""
        return self.forward + self.backward


def model_flops(functional: Functional, *, pairs: Pairs = "visible") -> ModelFlops:
    """Counts the arithmetic of a training step.

    Args:
        functional: the run; a `jzero.Engine` has it as `engine.functional`, `jzero.functional` makes it.
        pairs: how attention is counted. With "visible", causal attention is half a square and a window a band, as
            MaxText counts; with "all" it is the whole square, as PaLM's formula and torchtitan have it. Documents in
            packed rows are not known before the program runs and count as one.

    Returns:
        The sums. Branches count as the longest, loops whose length depends on data as one round.

    Example:
        >>> import jzero, numpy as np
        >>> from flax import linen as nn
        >>> fns = jzero.functional(
        ...     model=nn.Dense(16, use_bias=False), loss_fn=lambda model, x: (model(x) ** 2).mean(),
        ...     config={"train_batch_size": 8, "optimizer": {"type": "SGD"}},
        ...     sample_batch=np.ones((8, 4), np.float32),
        ... )
        >>> model_flops(fns)  # the input needs no gradient
        ModelFlops(forward=1024, backward=1024, uncounted=())
    """
    spec = functional.spec
    local_batch = local_shapes(functional.batch, n_data_shards(spec.mesh))
    params = jax.tree.map(
        lambda p, x: jax.ShapeDtypeStruct(p.shape, x.dtype),
        functional.placements.params,
        functional.whole.params,
        is_leaf=is_placement,
    )
    model_state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), functional.whole.model_state)
    loss = traced_loss(spec.model, spec.precision, counting(spec.mesh), params, model_state, local_batch)
    trained = jax.tree.leaves(spec.trainable)
    n_others = len(jax.tree.leaves((model_state, local_batch))) + 1  # and the random key
    found = _Count(pairs)
    found.walk(loss, [*trained, *[False] * n_others], Fraction(1))
    times = n_data_shards(spec.mesh) * spec.config.gradient_accumulation_steps
    return ModelFlops(round(times * found.forward), round(times * found.backward), tuple(sorted(found.uncounted)))


class _Count:
    """Adds up what a program asks for; a fact of a value is whether its gradient is needed."""

    def __init__(self, pairs: Pairs):
        self.pairs: Pairs = pairs
        self.forward = Fraction(0)
        self.backward = Fraction(0)
        self.uncounted: set[str] = set()

    def walk(self, program: Program, needed: Sequence[bool], times: Fraction) -> list[bool]:
        """Counts a program that runs so many times; returns which of its results' gradients are needed."""
        return interpret(
            program,
            list(needed),
            lambda eqn, ins: self._step(eqn, ins, times),
            literal=lambda _: False,
            constant=lambda _: False,
        )

    def _step(self, eqn: Equation, ins: list[bool], times: Fraction) -> Sequence[bool]:
        name = name_of(eqn)
        if name in INLINED and called_program(eqn) is not None:
            share = share_needed(eqn) if self.pairs == "visible" else 1
            return self.walk(called_program(eqn), ins, times * share)
        if name == SCAN:
            n_consts, n_carry = scan_arity(eqn)
            body = called_program(eqn)
            in_any_round = settled(lambda ins: follow(body, ins, any), ins, n_consts, n_carry, any)
            carried = in_any_round[:n_carry]
            self.walk(body, [*ins[:n_consts], *carried, *ins[n_consts + n_carry :]], times * rounds(eqn))
            return in_any_round
        if name == WHILE:
            return self._while(eqn, ins, times)
        if name == COND:
            return self._longest(eqn, ins, times)
        if reason := UNCOUNTED.get(name):
            self.uncounted.add(f"{name} ({reason})")
        if flops := product_flops(eqn):
            self._add(eqn, times * flops, ins)
        return [any(ins)] * len(eqn.outvars)

    def _add(self, eqn: Equation, flops: Fraction, needed: list[bool]) -> None:
        if name_of(eqn) != FLASH_ATTENTION:
            self.forward += flops
            self.backward += flops * sum(needed[:2])
            return
        if self.pairs == "visible":
            attention = flash_attention_of(eqn)
            n_queries, n_keys = (v.aval.shape[attention.keys_dim] for v in eqn.invars[:2])
            flops *= share_visible(Rule(attention.is_causal, attention.window, n_keys), n_queries)
        q, k, v = needed[:3]
        self.forward += flops
        self.backward += flops / 2 * (q + k + v + (q or k))  # of scores, and of what they weigh

    def _while(self, eqn: Equation, ins: list[bool], times: Fraction) -> list[bool]:
        body, _, n_body, n_condition = while_of(eqn)
        ins, before = ins[n_condition:], self.forward
        carried = settled(lambda ins: follow(body, ins, any), ins, n_body, len(ins) - n_body, any)
        self.walk(body, [*ins[:n_body], *carried], times)
        if self.forward > before:
            self.uncounted.add("while (its length depends on data, and it counts as one round)")
        return carried

    def _longest(self, eqn: Equation, ins: list[bool], times: Fraction) -> list[bool]:
        """The branch with the most forward."""
        branches: list[tuple[_Count, list[bool]]] = []
        for branch in branches_of(eqn):
            count = _Count(self.pairs)
            branches.append((count, count.walk(branch, ins[1:], times)))
        longest = max((count for count, _ in branches), key=lambda count: count.forward)
        self.forward += longest.forward
        self.backward += longest.backward
        self.uncounted |= longest.uncounted
        return [any(outs) for outs in zip(*(outs for _, outs in branches), strict=True)]
