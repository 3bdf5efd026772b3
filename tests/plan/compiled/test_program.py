"""Programs compiled for 8 GPUs that are not there, with answers known by hand."""

import dataclasses
import io
import json
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from jzero.base.units import format_bytes
from jzero.plan.compiled.program import KINDS, read_program
from jzero.plan.compiled.topology import compile_only, gpu_mesh
from jzero.plan.hardware.figures import gpu_figures
from jzero.sharding.mesh import make_mesh
from tests import jax_versions

REPLICATED, SHARDED = PartitionSpec(), PartitionSpec("shard")
N = 8


@pytest.fixture(scope="module")
def mesh():
    return gpu_mesh("h100-80g", n_gpus=N)


def compile_per_device(f, mesh, arguments, out_specs, options=None, **jit_options):
    """Compiles `f`, which runs on every device under shard_map; arguments are (global shape, dtype, spec)."""
    structs = [jax.ShapeDtypeStruct(s, d, sharding=NamedSharding(mesh, p)) for s, d, p in arguments]
    in_specs = tuple(spec for _, _, spec in arguments)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return read_program(compile_only(jax.jit(mapped, **jit_options).lower(*structs), options), mesh)


def test_one_of_each_kind(mesh):
    def f(x):
        return (
            lax.all_gather(x, "shard", tiled=True),
            lax.psum_scatter(x, "shard", tiled=True),
            lax.psum(x, "shard"),
            lax.all_to_all(x, "shard", 0, 0, tiled=True),
            lax.ppermute(x, "shard", [(i, (i + 1) % N) for i in range(N)]),
        )

    # One device's part has 1024 x 64 f32: 256 KiB.
    part = 1024 * 64 * 4
    out_specs = (REPLICATED, SHARDED, REPLICATED, SHARDED, SHARDED)
    program = compile_per_device(f, mesh, [((N * 1024, 64), jnp.float32, SHARDED)], out_specs)
    found = {c.kind: c for c in program.collectives}
    assert len(found) == len(program.collectives) == 5
    assert found["all-gather"].n_bytes == N * part
    assert found["all-gather"].wire_bytes == (N - 1) * part
    assert found["reduce-scatter"].n_bytes == part
    assert found["reduce-scatter"].wire_bytes == (N - 1) * part // N
    assert found["all-reduce"].n_bytes == part
    assert found["all-reduce"].wire_bytes == 2 * (N - 1) * part // N
    assert found["all-to-all"].n_bytes == part
    assert found["all-to-all"].wire_bytes == (N - 1) * part // N
    assert found["collective-permute"].n_bytes == found["collective-permute"].wire_bytes == part
    for c in program.collectives:
        assert c.kind in KINDS
        assert (c.dtype, c.group_size, c.axes, c.executions, c.executions_known) == ("f32", N, ("shard",), 1, True)
    assert "psum" in found["all-reduce"].op_name
    assert found["all-gather"].shape == (N * 1024, 64)
    assert found["reduce-scatter"].shape == (1024, 64)
    assert program.flops == 0


@pytest.mark.parametrize("option", [None, "pipelined"])
def test_nested_scans_multiply(mesh, option):
    """5 layers of 512 x 512 in bf16, applied 3 times; the sum over devices after the loops."""

    def f(weights, x):
        def layer(x, w):
            return x @ lax.all_gather(w, "shard", tiled=True), None

        x, _ = lax.scan(lambda x, _: (lax.scan(layer, x, weights)[0], None), x, None, length=3)
        return lax.psum_scatter(x.astype(jnp.float32), "shard", tiled=True)

    arguments = [
        ((5, 512, 512), jnp.bfloat16, PartitionSpec(None, "shard")),
        ((512, 512), jnp.bfloat16, REPLICATED),
    ]
    options = jax_versions.PIPELINED_GATHERS if option else {}
    program = compile_per_device(f, mesh, arguments, SHARDED, options)
    gathers = program.select(kind="all-gather")
    # Pipelining peels the first gather of each inner loop off into the outer one.
    assert [c.executions for c in gathers] == ([12, 3] if option else [15])
    assert {(c.dtype, c.n_bytes, c.asynchronous) for c in gathers} == {("bf16", 512 * 512 * 2, True)}
    assert all(c.overlapped_flops == (2 * 512**3 if c.executions == 12 else 0) for c in gathers)
    assert program.overlapped_share(kind="all-gather") == (12 / 15 if option else 0)
    assert program.total_bytes("all-gather") == 15 * 512 * 512 * 2
    assert program.wire_bytes("all-gather") == 15 * 512 * 512 * 2 * 7 // 8
    (scatter,) = program.select(kind="reduce-scatter")
    assert (scatter.dtype, scatter.n_bytes, scatter.executions) == ("f32", 512 * 512 * 4, 1)
    assert program.flops == 15 * 2 * 512**3
    assert program.select(in_loops=False) == (scatter,)
    assert program.select(in_loops=True) == gathers
    assert program.overlapped_share(in_loops=True) == (12 / 15 if option else 0)
    assert program.overlapped_share(in_loops=False) == 0


def test_a_loop_of_unknown_length_is_marked(mesh):
    def f(n, x):
        return lax.fori_loop(0, n, lambda _, x: lax.psum(x, "shard") * 2, x)

    arguments = [((), jnp.int32, REPLICATED), ((4096, 4096), jnp.float32, REPLICATED)]
    (reduction,) = compile_per_device(f, mesh, arguments, REPLICATED).collectives
    assert (reduction.executions, reduction.executions_known) == (1, False)


def test_combined_collectives_are_split(mesh):
    """XLA merges collectives of one kind into one over a tuple; here each array is counted by itself."""

    def f(a, b):
        return lax.psum_scatter((a, b), "shard", tiled=True)

    arguments = [((512, 512), jnp.float32, REPLICATED), ((1024, 512), jnp.float32, REPLICATED)]
    program = compile_per_device(f, mesh, arguments, SHARDED)
    assert sorted(c.shape for c in program.collectives) == [(512, 512), (1024, 512)]
    assert {c.kind for c in program.collectives} == {"reduce-scatter"}
    assert len({c.name for c in program.collectives}) == 1
    assert program.total_bytes() == (512 + 1024) * 512 * 4
    assert program.select(min_bytes=1024 * 512 * 4) == tuple(c for c in program.collectives if c.shape[0] == 1024)


def test_products_beside_a_collective_are_counted(mesh):
    def f(a, b):
        return lax.psum(a, "shard"), b @ b

    arguments = [((4096, 4096), jnp.float32, REPLICATED), ((2048, 2048), jnp.bfloat16, REPLICATED)]
    program = compile_per_device(f, mesh, arguments, REPLICATED)
    (reduction,) = program.collectives
    assert reduction.asynchronous
    assert reduction.overlapped_flops == program.flops == 2 * 2048**3
    assert program.overlapped_share() == 1.0


def test_axes_of_the_mesh():
    mesh = make_mesh(list(gpu_mesh("h100-80g", n_gpus=16).devices.flat), replica=2, tensor=2)
    axes = [("shard",), ("replica",), ("replica", "shard"), ("replica", "tensor"), ("replica", "shard", "tensor")]

    def f(*arrays):
        return tuple(lax.psum(x, names) for x, names in zip(arrays, axes, strict=True))

    # Different sizes tell them apart.
    arguments = [((1024 * (i + 1), 1024), jnp.float32, REPLICATED) for i in range(len(axes))]
    program = compile_per_device(f, mesh, arguments, REPLICATED)
    sizes = {"replica": 2, "shard": 4, "tensor": 2}
    by_rows = {c.n_bytes // (1024 * 1024 * 4) - 1: c for c in program.collectives}
    for i, names in enumerate(axes):
        assert by_rows[i].axes == names
        assert by_rows[i].group_size == jnp.prod(jnp.array([sizes[name] for name in names]))


def test_the_partitioners_collectives_are_read_too(mesh):
    """No shard_map: weights sharded by annotation are gathered, or the product's partial sums reduced."""
    x = jax.ShapeDtypeStruct((256, 8192), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(None, "shard")))
    w = jax.ShapeDtypeStruct((8192, 128), jnp.bfloat16, sharding=NamedSharding(mesh, SHARDED))
    replicated = NamedSharding(mesh, REPLICATED)
    compiled = compile_only(jax.jit(jnp.dot, out_shardings=replicated).lower(x, w))
    (reduction,) = read_program(compiled, mesh).collectives
    assert (reduction.kind, reduction.group_size, reduction.axes) == ("all-reduce", N, ("shard",))
    assert reduction.n_bytes == 256 * 128 * (2 if reduction.dtype == "bf16" else 4)


def test_memory_counts_donation_and_the_host(mesh):
    f = partial(jnp.add, 1.0)
    x = jax.ShapeDtypeStruct((N * 1024,), jnp.float32, sharding=NamedSharding(mesh, SHARDED))
    memory = read_program(compile_only(jax.jit(f, donate_argnums=0).lower(x))).memory
    assert (memory.argument, memory.output, memory.alias) == (4096, 4096, 4096)
    assert memory.peak >= 4096
    assert memory.host_argument == 0
    on_host = NamedSharding(mesh, SHARDED, memory_kind="pinned_host")
    y = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on_host)
    there_and_back = lambda y: jax.device_put(f(jax.device_put(y, jax.memory.Space.Device)), jax.memory.Space.Host)
    lowered = jax.jit(there_and_back, donate_argnums=0, out_shardings=on_host).lower(y)
    memory = read_program(compile_only(lowered)).memory
    assert (memory.argument, memory.output, memory.alias) == (0, 0, 0)
    assert (memory.host_argument, memory.host_output, memory.host_alias) == (4096, 4096, 4096)


def test_a_cpu_program():
    mesh = make_mesh()

    def f(x):
        return lax.psum_scatter(x, "shard", tiled=True), lax.all_to_all(x, "shard", 0, 0, tiled=True)

    arguments = [((N * 16, 4), jnp.float32, REPLICATED)]
    program = compile_per_device(f, mesh, arguments, SHARDED, options=None)
    assert json.loads(program.to_json())["loops"] is None
    assert len(json.loads(program.to_json("h200"))["loops"]) == 1
    assert {(c.kind, c.n_bytes, c.axes, c.asynchronous) for c in program.collectives} == {
        ("reduce-scatter", N * 16 * 4 * 4, ("shard",), False),
        ("all-to-all", N * 16 * 4 * 4, ("shard",), False),
    }


def test_json_and_table(mesh):
    def f(x):
        return lax.scan(lambda x, _: (lax.psum(x, "shard"), None), x, None, length=6)[0]

    program = compile_per_device(f, mesh, [((4096, 4096), jnp.float32, REPLICATED)], REPLICATED)
    content = json.loads(program.to_json())
    size = 4096 * 4096 * 4
    assert content["totals"] == {"all-reduce": {"n_bytes": 6 * size, "wire_bytes": 6 * size * 2 * 7 // 8}}
    assert content["collectives"][0]["shape"] == [4096, 4096]
    assert content["memory"]["argument"] == size
    assert "hlo_text" not in content
    assert "HloModule" not in repr(program)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(program.table())
    text = console.export_text()
    assert "all-reduce" in text
    assert "f32[4096,4096]" in text
    assert format_bytes(6 * size * 2 * 7 // 8) in text
    assert "arguments 67.1 MB" in text
    outside, loop = content["loops"]
    assert (outside["loop"], outside["reduced_bytes"]) == (None, 0)
    assert (loop["runs"], loop["reduced_bytes"]) == (6, 6 * size * 2 * 7 // 8)
    seconds = 6 * size * 2 * 7 / 8 / gpu_figures("h100-80g").nvlink_bandwidth
    assert loop["communication_seconds"] == loop["exposed_seconds"] == pytest.approx(seconds)
    console.print(program.traffic_table())
    text = console.export_text()
    assert "at the peak speed of h100-80g" in text
    assert f"{1e3 * seconds:.3f}" in text
    (_, slower) = program.loops(dataclasses.replace(gpu_figures("h100-80g"), nvlink_bandwidth=45e9))
    assert slower.communication_seconds == pytest.approx(10 * seconds)
