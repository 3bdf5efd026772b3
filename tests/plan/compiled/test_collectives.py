"""Every way XLA writes a collective down: plain, start and done, wrapped, fused, in tuples."""

import pytest

from jzero.plan.compiled.collectives import read_collectives
from jzero.plan.compiled.hlo import parse_module

GROUPS = "replica_groups=[1,8]<=[8]"
DIM_0 = f"{GROUPS}, dimensions={{0}}"
SYNC = 'backend_config={"collective_backend_config":{"is_sync":true}}'


def read(lines, computations=""):
    """Collectives of a program whose entry has these lines, on 8 devices, beside one 16 x 16 product."""
    body = "\n".join(f"  {line}" for line in lines)
    return read_collectives(
        parse_module(f"""\
HloModule m, is_scheduled=true, num_partitions=8
%sum (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}}
{computations}
ENTRY %main (p: bf16[2,16], q: f32[16,16]) -> f32[16,16] {{
  %p = bf16[2,16]{{1,0}} parameter(0)
  %q = f32[16,16]{{1,0}} parameter(1)
{body}
  ROOT %end = f32[16,16]{{1,0}} copy(%q)
}}
""")
    )


PRODUCT = "%product = f32[16,16]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
FROM_JAX = 'to_apply=%sum, metadata={op_name="jit(f)/psum_scatter"}'
WRAPPED = f"""\
%wrapped (w: f32[16,16]) -> f32[2,16] {{
  %w = f32[16,16]{{1,0}} parameter(0)
  ROOT %rs = f32[2,16]{{1,0}} reduce-scatter(%w), {DIM_0}, {FROM_JAX}
}}
"""


@pytest.mark.parametrize(
    ("lines", "kind", "dtype", "shape", "asynchronous"),
    [
        (
            [f"%c = bf16[16,16]{{1,0}} all-gather(%p), {DIM_0}"],
            "all-gather",
            "bf16",
            (16, 16),
            False,
        ),
        (
            [
                f"%s = (bf16[2,16]{{1,0}}, bf16[16,16]{{1,0}}) all-gather-start(%p), {DIM_0}",
                PRODUCT,
                "%d = bf16[16,16]{1,0} all-gather-done(%s)",
            ],
            "all-gather",
            "bf16",
            (16, 16),
            True,
        ),
        (
            [
                f"%s = ((bf16[2,16]{{1,0}}), bf16[16,16]{{1,0}}) all-gather-start(%p), {DIM_0}, {SYNC}",
                "%d = bf16[16,16]{1,0} all-gather-done(%s)",
            ],
            "all-gather",
            "bf16",
            (16, 16),
            False,
        ),
        (
            [
                f"%s = f32[16,16]{{1,0}} all-reduce-start(%q), {GROUPS}, to_apply=%sum",
                PRODUCT,
                "%d = f32[16,16]{1,0} all-reduce-done(%s)",
            ],
            "all-reduce",
            "f32",
            (16, 16),
            True,
        ),
        (
            [
                f"%s = ((f32[16,16]{{1,0}}), f32[16,16]{{1,0}}) all-reduce-start(%q), {GROUPS}, to_apply=%sum",
                PRODUCT,
                "%d = f32[16,16]{1,0} all-reduce-done(%s)",
            ],
            "all-reduce",
            "f32",
            (16, 16),
            True,
        ),
        (
            [
                f"%s = ((f32[16,16]{{1,0}}), f32[2,16]{{1,0}}) reduce-scatter-start(%q), {DIM_0}",
                PRODUCT,
                "%d = f32[2,16]{1,0} reduce-scatter-done(%s)",
            ],
            "reduce-scatter",
            "f32",
            (16, 16),
            True,
        ),
        (
            [
                "%s = ((f32[16,16]{1,0}), f32[2,16]{1,0}, u32[]) async-start(%q), calls=%wrapped",
                "%u = ((f32[16,16]{1,0}), f32[2,16]{1,0}, u32[]) async-update(%s)",
                PRODUCT,
                "%d = f32[2,16]{1,0} async-done(%u)",
            ],
            "reduce-scatter",
            "f32",
            (16, 16),
            True,
        ),
        (["%f = f32[2,16]{1,0} fusion(%q), kind=kCustom, calls=%wrapped"], "reduce-scatter", "f32", (16, 16), False),
        (
            [
                "%s = (bf16[2,16]{1,0}, bf16[2,16]{1,0}, u32[], u32[]) collective-permute-start(%p), "
                "source_target_pairs={{0,1},{1,0}}",
                PRODUCT,
                "%d = bf16[2,16]{1,0} collective-permute-done(%s)",
            ],
            "collective-permute",
            "bf16",
            (2, 16),
            True,
        ),
    ],
)
def test_every_way_of_writing(lines, kind, dtype, shape, asynchronous):
    (found,) = read(lines, WRAPPED)
    assert (found.kind, found.dtype, found.shape, found.asynchronous) == (kind, dtype, shape, asynchronous)
    assert found.computation == "main"
    assert found.executions == 1
    assert found.overlapped_flops == (2 * 16**3 if asynchronous else 0)
    assert found.op_name == ("jit(f)/psum_scatter" if "%wrapped" in " ".join(lines) else "")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"%s = (bf16[16,16], f32[16,16]) all-reduce-start(%p, %q), {GROUPS}, to_apply=%sum", "all-reduce"),
        (f"%s = (bf16[16,16], f32[16,16]) all-reduce(%p, %q), {GROUPS}, to_apply=%sum", "all-reduce"),
        (
            f"%s = ((bf16[2,16], f32[2,16]), (bf16[16,16], f32[16,16])) all-gather-start(%p, %q), {DIM_0}",
            "all-gather",
        ),
        (f"%s = (bf16[2,16], f32[2,16]) reduce-scatter(%p, %q), {DIM_0}", "reduce-scatter"),
    ],
)
def test_tuples_are_split(line, kind):
    bf16, f32 = read([line])
    assert bf16.kind == f32.kind == kind
    assert (bf16.dtype, f32.dtype) == ("bf16", "f32")
    assert bf16.shape == f32.shape == (16, 16)
    assert (bf16.n_bytes, f32.n_bytes) == (512, 1024)
    assert bf16.name == f32.name == "s"


def test_an_all_to_all_over_a_tuple_is_one_payload():
    arrays = ", ".join(["f32[2,16]"] * 8)
    (found,) = read([f"%c = ({arrays}) all-to-all({', '.join(['%q'] * 8)}), {GROUPS}"])
    assert (found.shape, found.n_bytes, found.wire_bytes) == ((8, 2, 16), 1024, 896)


@pytest.mark.parametrize(
    ("line", "wire_bytes"),
    [
        (f"%c = f32[16,16] all-gather(%q), {DIM_0}", 896),
        (f"%c = f32[2,16] reduce-scatter(%q), {DIM_0}", 896),
        (f"%c = f32[16,16] all-reduce(%q), {GROUPS}", 2 * 896),
        (f"%c = f32[16,16] all-to-all(%q), {DIM_0}", 896),
        ("%c = f32[16,16] collective-permute(%q), source_target_pairs={{0,1}}", 1024),
        ("%c = f32[16,16] collective-broadcast(%q), replica_groups={{0,1}}", 1024),
        ("%c = f32[16,16] all-reduce(%q), replica_groups=[8,1]<=[8]", 0),
    ],
)
def test_bytes_on_the_wire(line, wire_bytes):
    (found,) = read([line])
    assert found.wire_bytes == wire_bytes
