"""Whose each array of a compiled program is, in the words of a plan: parameters, gradients, activations and so on.

XLA's buffers have no owner. What they hold is read off the program: what enters it has a name, collectives know which
parameter they carry (`jzero.sharding.collectives.label`), and what is made of parameters alone stands for them.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

from jzero.plan.compiled.collectives import KINDS
from jzero.plan.compiled.dataflow import Dataflow, Place, float_arrays, n_bytes, places
from jzero.plan.compiled.hlo import Instruction, Module

_FROM_NOTHING = frozenset({"partition-id", "replica-id", "rng-bit-generator"})
_OF_PARAMETERS, _OF_OTHERS = 1, 2
_PREFIXES = {"state.params": "parameters", "state.opt_state": "optimizer_state"}


def array_owners(module: Module) -> Mapping[Place, str]:
    """Finds the owner of each array outside of kernels.

    Args:
        module: a compiled training step.

    Returns:
        Array -> one of `jzero.plan.memory_use.PARTS`. `rest` is what enters beside parameters and optimizer state, and
        what the update of the parameters computes on the way.
    """
    flow = Dataflow(module)
    arguments = {line.name for line in module.computations[module.entry].instructions.values() if is_argument(line)}
    summed = _summed(flow)
    summed |= _on_the_way(flow, summed, flow.roots(module.computations[module.entry].root))
    made_of_sums, origins = _made_of(flow, summed), _origins(flow, arguments)
    gathered = {root for line in flow.lines.values() if _gathers(flow, line) for root in flow.roots(line)}

    def owner(line: Instruction, root: Place) -> str:
        in_update = line.op_name.startswith("jit(") and "/shard_map" not in line.op_name
        if line.name in arguments:
            return argument_part(line)
        if root in summed or (root in made_of_sums and not in_update):
            return "gradients"
        if root in gathered or origins[root] == _OF_PARAMETERS:
            return "gathered_weights"
        return "rest" if in_update else "activations"

    return {place: owner(line, flow.root(place)) for line in flow.lines.values() for place in places(line)}


def is_argument(line: Instruction) -> bool:
    """Whether an instruction of the entry computation stands for an argument of the program."""
    return line.opcode == "parameter"


def argument_part(line: Instruction) -> str:
    """The part of a plan that an argument of the program belongs to; see `owners`."""
    return next((part for prefix, part in _PREFIXES.items() if line.op_name.startswith(prefix)), "rest")


def readable(op_name: str) -> str:
    """A name stack without what is in those of every step.

    Example:
        >>> readable("jit(step)/shard_map/transpose(jvp(gather[h.0.kernel for dot_general]))/all_gather")
        'backward: gather[h.0.kernel for dot_general]/all_gather'
    """
    name, *others = op_name.split(":")  # those that XLA combined into one
    backward = "backward: " if "transpose(" in name else ""
    name = re.sub(r"jit\(step\)/|shard_map/|closed_call/|while/body/", "", name)
    while name != (name := re.sub(r"\b(?:transpose|jvp|jit)\(([^()]*)\)", r"\1", name)):
        pass
    if name.count("(") > name.count(")"):
        name = name.replace("(", "", 1)
    name = "/".join(part for part in name.split("/") if part) + f" and {len(others)} more" * bool(others)
    return "carried by a loop" if name == "while" else backward + name


def _collective(flow: Dataflow, line: Instruction) -> str | None:
    """The kind of a collective, also of one inside of a fusion or an asynchronous call."""
    opcodes = (i.opcode.removesuffix("-start").removesuffix("-done") for i in flow.with_kernel(line))
    return next((opcode for opcode in opcodes if opcode in KINDS), None)


def _gathers(flow: Dataflow, line: Instruction) -> bool:
    labelled = "gather[" in line.op_name and "scatter[" not in line.op_name
    return labelled or _collective(flow, line) == "all-gather"


def _summed(flow: Dataflow) -> set[Place]:
    """What the collectives that sum gradients read and make; the model's own collectives stand in its passes."""
    found = set()
    for line in flow.lines.values():
        kind = _collective(flow, line)
        is_model_s = "jvp" in line.op_name and "scatter[" not in line.op_name
        if kind == "reduce-scatter" or (kind == "all-reduce" and not is_model_s):
            found |= flow.roots(line).union(*map(flow.roots, flow.operands(line)))
    return found


def _on_the_way(flow: Dataflow, summed: set[Place], returned: set[Place]) -> set[Place]:
    """What becomes gradients and nothing else, back to the products that make them."""
    products = {
        line.name
        for line in flow.lines.values()
        if any(i.opcode in ("dot", "convolution", "custom-call") for i in flow.with_kernel(line))
    }
    leads: dict[Place, set[Place]] = defaultdict(set)
    kept = set(returned)
    for line, results, operands, size in flow.flows:
        if "jvp(" in line.op_name and "transpose(" not in line.op_name:  # of the forward pass
            kept |= results
        for operand in operands:
            roots = flow.roots(operand)
            sums_up = n_bytes(operand.type) > size and operand.name not in products
            if sums_up or line.name in products:
                kept |= roots
            for root in roots:
                leads[root] |= results - {root}
    found = {root for root, later in leads.items() if later} - kept - summed
    while lost := {root for root in found if not leads[root] <= found | summed}:
        found -= lost
    return found


def _made_of(flow: Dataflow, sources: set[Place]) -> set[Place]:
    """What is computed of some arrays and of numbers only, such as gradients that are scaled or clipped."""
    found, before = set(sources), set()
    while found != before:
        before = set(found)
        for _, results, operands, _ in flow.flows:
            read = {flow.root(place) for operand in operands for place in float_arrays(operand)}
            read -= results  # a stack that a loop fills
            if read and read <= found:
                found |= results
    return found


def _origins(flow: Dataflow, arguments: set[str]) -> Mapping[Place, int]:
    """Whether each array was made of parameters, of something else, or of both."""
    found: dict[Place, int] = defaultdict(int)
    for name in arguments:
        line = flow.lines[name]
        for root in flow.roots(line):
            found[root] |= _OF_PARAMETERS if argument_part(line) == "parameters" else _OF_OTHERS
    changed = True
    while changed:  # loops hand on what they make
        changed = False
        for line, results, operands, _ in flow.flows:
            mask = _OF_OTHERS if line.opcode in _FROM_NOTHING else 0
            for operand in operands:
                for root in flow.roots(operand):
                    mask |= found[root]
            for root in results:
                changed |= found[root] | mask != found[root]
                found[root] |= mask
    return found
