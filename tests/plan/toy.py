"""Small scheduled programs, written by hand, for a toy GPU on which every product takes 1 second and every gather 2."""

from jzero.plan.compiled.hlo import Module, parse_module
from jzero.plan.hardware.figures import GpuFigures
from jzero.plan.hardware.network import Network

# A product of two 16 x 16 arrays has 8192 flops; a gather of one over 8 devices sends 896 bytes.
TOY = GpuFigures(
    name="toy",
    device_kind="",
    memory=1,
    flops={"f32": 8192.0, "bf16": 4 * 8192.0},
    memory_bandwidth=1e30,
    nvlink_bandwidth=448.0,
    pcie_bandwidth=1024.0,
    network=Network("toy", 56.0, False, 0.0),
    kernel_latency=0.0,
    launch_latency=0.0,
    node_latency=0.0,
)
OVER_8 = "replica_groups=[1,8]<=[8], dimensions={0}"
PRODUCT_OF = "f32[16,16] dot({0}, {0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"

BODY = """\
%body (c: (s32[], f32[16,16])) -> (s32[], f32[16,16]) {{
  %c = (s32[], f32[16,16]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %x = f32[16,16] get-tuple-element(%c), index=1
{lines}
  ROOT %next = (s32[], f32[16,16]) tuple(%i, %x)
}}
%condition (d: (s32[], f32[16,16])) -> pred[] {{
  %d = (s32[], f32[16,16]) parameter(0)
  ROOT %more = pred[] constant(true)
}}
"""


def loop(rounds=5):
    return (
        "%loop = (s32[], f32[16,16]) while(%start), condition=%condition, body=%body, "
        f'metadata={{op_name="jit(f)/while"}}, backend_config={{"known_trip_count":{{"n":"{rounds}"}}}}'
    )


def gather(name, source="%q"):
    return f"%{name} = (f32[2,16], f32[16,16]) all-gather-start({source}), {OVER_8}"


def done(name):
    return f"%{name}_done = f32[16,16] all-gather-done(%{name})"


def product(name, source="%q"):
    return f"%{name} = {PRODUCT_OF.format(source)}"


def program(lines, body=()) -> Module:
    """Entry with these lines, and perhaps a loop body with those."""
    text = "\n".join(
        [
            "HloModule m, is_scheduled=true, num_partitions=8",
            BODY.format(lines="\n".join(f"  {line}" for line in body)),
            "ENTRY %main (q: f32[16,16], n: s32[]) -> f32[16,16] {",
            "  %q = f32[16,16] parameter(0)",
            "  %n = s32[] parameter(1)",
            "  %start = (s32[], f32[16,16]) tuple(%n, %q)",
            *[f"  {line}" for line in lines],
            "  ROOT %end = f32[16,16] bitcast(%q)",
            "}",
        ]
    )
    return parse_module(text)
