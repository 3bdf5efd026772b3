"""Counts the floating-point operations of matrix products and convolutions, wherever XLA put them.

They hide in fusions, library calls, asynchronous computations and loops; elementwise work is not counted, because it
does not fill the time a collective takes.
"""

import math
import re
from collections import Counter

from jzero.plan.compiled.hlo import Array, Instruction, Module, leaves
from jzero.plan.compiled.loops import trip_count
from jzero.plan.hardware.kernel import share_seen


class FlopCounter:
    """Flops per device of the instructions of one module; results are remembered per computation."""

    def __init__(self, module: Module):
        """Keeps the module to look up operands and called computations in."""
        self._module = module
        self._by_computation: dict[str, Counter[str]] = {}

    def computation(self, name: str) -> int:
        """Flops of running a computation once."""
        return self._in_computation(name).total()

    def instruction(self, computation: str, line: Instruction) -> int:
        """Flops of running one instruction of a computation once; loops of unknown length count as one round."""
        return self.by_dtype(computation, line).total()

    def by_dtype(self, computation: str, line: Instruction) -> Counter[str]:
        """The same by HLO dtype of the left operand, on which a GPU's speed depends."""
        arrays = [self._operand(computation, operand) for operand in line.operands]
        result = leaves(line.type)[0] if leaves(line.type) else None
        if line.opcode == "dot" and result and arrays[0]:
            return _product(result, arrays[0], line.attribute("lhs_contracting_dims") or "")
        if line.opcode == "custom-call" and "gemm_backend_config" in line.attributes and result and arrays[0]:
            dims = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', line.attributes)
            return _product(result, arrays[0], dims[1] if dims else "")
        if line.opcode == "custom-call" and "__cudnn$fmha" in line.attributes and arrays[0]:
            return _flash_attention(line.attributes, arrays[0])
        labels = line.attribute("dim_labels")
        if labels and result and arrays[0] and arrays[1]:
            return _convolution(line, labels, result, arrays[0], arrays[1])
        trips = (trip_count(self._module, computation, line) or 1) if line.opcode == "while" else 1
        total: Counter[str] = Counter()
        for callee in line.called:
            total.update({dtype: trips * flops for dtype, flops in self._in_computation(callee).items()})
        return total

    def _in_computation(self, name: str) -> Counter[str]:
        if name not in self._by_computation:
            total: Counter[str] = Counter()
            for line in self._module.computations[name].instructions.values():
                total.update(self.by_dtype(name, line))
            self._by_computation[name] = total
        return self._by_computation[name]

    def _operand(self, computation: str, name: str) -> Array | None:
        line = self._module.computations[computation].instructions.get(name)
        return line.type if line is not None and isinstance(line.type, Array) else None


def _product(result: Array, left: Array, contracting: str) -> Counter[str]:
    dims = [int(dim) for dim in re.findall(r"\d+", contracting)]
    return Counter({left.dtype: 2 * math.prod(result.shape) * math.prod(left.shape[dim] for dim in dims)})


def _flash_attention(attributes: str, queries: Array) -> Counter[str]:
    """cuDNN's attention, whose scores are in no array: two products, and five where it makes the scores again."""
    scores = re.search(r'"intermediate_tensor_shape": *{[^{}]*"dimensions": *\[([^\]]*)\]', attributes)
    if not scores:
        return Counter()
    dims = [int(dim) for dim in re.findall(r"\d+", scores[1])]
    window = re.search(r'"sliding_window_length": *"?(\d+)', attributes)
    seen = share_seen(dims[-1], "CAUSAL" in attributes, int(window[1]) if window and int(window[1]) else None)
    n_products = 5 if "fmhaSoftmaxBackward" in attributes else 2
    return Counter({queries.dtype: round(2 * n_products * math.prod(dims) * queries.shape[-1] * seen)})


def _convolution(line: Instruction, labels: str, result: Array, left: Array, right: Array) -> Counter[str]:
    """Every output activation is a product with the whole kernel but its output features, in all three passes."""
    activations, kernel = result, right
    if "convBackwardInput" in line.attributes:
        activations = left
    elif "convBackwardFilter" in line.attributes:
        activations, kernel = right, result
    kernel_labels = labels.partition("_")[2].partition("-")[0]
    flops = 2 * math.prod(activations.shape) * math.prod(kernel.shape) // kernel.shape[kernel_labels.index("o")]
    return Counter({left.dtype: flops})
