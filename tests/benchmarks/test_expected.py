"""Which collectives count as ZeRO's own."""

import jax
import jax.numpy as jnp
import pytest
from expected import unexpected

from jzero.plan.compiled.collectives import read_collectives
from jzero.plan.compiled.hlo import parse_module

STACKED = [(3, 512, 1024), (1, 1, 512, 2048), (1001, 771)]
OVER_8 = "replica_groups=[1,8]<=[8], dimensions={0}"


def read(line):
    lines = "ENTRY %main (p: f32[]) -> f32[] {", "  %p = f32[] parameter(0)", f"  %c = {line}", "}"
    return read_collectives(parse_module("\n".join(["HloModule m, num_partitions=8", *lines])))


@pytest.mark.parametrize(
    ("line", "n_unexpected"),
    [
        (f"bf16[3,512,1024] all-gather(%p), {OVER_8}", 0),
        (f"bf16[512,1024] all-gather(%p), {OVER_8}", 0),
        (f"bf16[1024,512] all-gather(%p), {OVER_8}", 0),
        (f"bf16[512,2048] all-gather(%p), {OVER_8}", 0),
        (f"bf16[1001,776] all-gather(%p), {OVER_8}", 0),  # padded
        (f"bf16[8,512,1024] all-gather(%p), {OVER_8}", 1),
        (f"bf16[1048576] all-gather(%p), {OVER_8}", 1),
        (f"f32[64,1024] reduce-scatter(%p), {OVER_8}", 0),
        (f"f32[512,2048] all-reduce(%p), {OVER_8}", 0),
        (f"f32[1048576] all-reduce(%p), {OVER_8}", 0),
        (f"f32[8,512,1024] all-reduce(%p), {OVER_8}", 1),
        (f"bf16[512,1024] all-to-all(%p), {OVER_8}", 1),
        ("bf16[512,1024] collective-permute(%p), source_target_pairs={{0,1}}", 1),
        (f"bf16[8,8] all-to-all(%p), {OVER_8}", 0),  # too small to matter
    ],
)
def test_shapes_tell(line, n_unexpected):
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in STACKED]
    assert len(unexpected(read(line), params, 8, stacked=True)) == n_unexpected


def test_layers_count_only_where_they_are_stacked():
    params = [jax.ShapeDtypeStruct((3, 512, 1024), jnp.float32)]
    collectives = read(f"f32[512,1024] all-gather(%p), {OVER_8}")
    assert not unexpected(collectives, params, 8, stacked=True)
    assert len(unexpected(collectives, params, 8, stacked=False)) == 1
