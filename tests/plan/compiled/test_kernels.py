"""What instructions read, write and multiply, in programs written by hand."""

import pytest

from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.kernels import KernelReader
from jzero.plan.hardware.figures import gpu_figures
from jzero.plan.hardware.kernel import Kernel

MODULE = """\
HloModule m, is_scheduled=true
%slices (p: f32[8,16], i: s32[]) -> f32[1,16] {
  %p = f32[8,16] parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %b = f32[8,16] bitcast(%p)
  %s = f32[1,16] dynamic-slice(%b, %i, %z), dynamic_slice_sizes={1,16}
  ROOT %t = f32[1,16] tanh(%s)
}
%updates (p: f32[8,16], u: f32[1,16], i: s32[]) -> f32[8,16] {
  %p = f32[8,16] parameter(0)
  %u = f32[1,16] parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %d = f32[8,16] dynamic-update-slice(%p, %u, %i, %z)
}
%two (p: f32[8,16]) -> (f32[8,16], f32[8,16]) {
  %p = f32[8,16] parameter(0)
  %e = f32[8,16] exponential(%p)
  ROOT %r = (f32[8,16], f32[8,16]) tuple(%e, %e)
}
ENTRY %main (x: f32[8,16], h: f32[8,16], i: s32[]) -> f32[8,16] {
  %x = f32[8,16]{1,0} parameter(0)
  %h = f32[8,16]{1,0:S(5)} parameter(1)
  %i = s32[] parameter(2)
  %slice = f32[1,16] fusion(%x, %i), kind=kLoop, calls=%slices
  %update = f32[8,16] fusion(%x, %slice, %i), kind=kLoop, calls=%updates
  %both = (f32[8,16], f32[8,16]) fusion(%x), kind=kLoop, calls=%two
  %square = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %in = (f32[8,16]{1,0}, f32[8,16]{1,0:S(5)}, u32[]) copy-start(%h)
  %came = f32[8,16]{1,0} copy-done(%in)
  %piece = ((f32[8,16]{1,0:S(5)}, s32[]), f32[1,16]{1,0}, u32[]) fusion-start(%h, %i), kind=kLoop, calls=%slices
  %out = (f32[8,16]{1,0:S(5)}, f32[8,16]{1,0}, u32[]) copy-start(%came)
  %name = f32[128] bitcast(%x)
  ROOT %end = f32[8,16] copy(%x)
}
"""
WHOLE, SLICE, NUMBER = 8 * 16 * 4, 16 * 4, 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slice", Kernel(n_bytes=2 * SLICE + NUMBER)),
        ("update", Kernel(n_bytes=2 * SLICE + NUMBER)),
        ("both", Kernel(n_bytes=3 * WHOLE)),
        ("square", Kernel({"f32": 2 * 8 * 8 * 16}, 2 * WHOLE + 8 * 8 * 4)),
        ("in", Kernel(n_bytes=WHOLE, to_device=WHOLE)),
        ("came", None),
        ("piece", Kernel(n_bytes=SLICE + NUMBER, to_device=SLICE)),
        ("out", Kernel(n_bytes=WHOLE, to_host=WHOLE)),
        ("name", None),
        ("end", Kernel(n_bytes=2 * WHOLE)),
    ],
)
def test_what_an_instruction_does(name, expected):
    module = parse_module(MODULE)
    assert KernelReader(module).kernel("main", module.computations["main"].instructions[name]) == expected


def test_the_slower_of_products_memory_and_copies_counts():
    gpu = gpu_figures("a100-80g")
    seconds = lambda **work: Kernel(**work).seconds(gpu)
    products, memory, copies = {"bf16": 312 * 10**9}, int(gpu.memory_bandwidth / 500), int(gpu.pcie_bandwidth / 250)
    assert seconds(flops=products) == 0.001
    assert seconds(flops=products, n_bytes=memory) == pytest.approx(0.002)
    assert seconds(flops=products, n_bytes=memory, to_host=copies) == pytest.approx(0.004)
    assert seconds() == 2e-6
