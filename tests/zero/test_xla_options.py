"""The options that XLA gets with a program: sizes of buckets, in bytes, and what runs beside what."""

import os

import pytest

from jzero import make_mesh
from jzero.config import Config
from jzero.jaxpr import overlap_options
from jzero.plan import gpu_mesh
from jzero.zero.precision import precision_of
from jzero.zero.xla_options import COMBINE_UP_TO_BYTES, GATHER_UP_TO_BYTES, PATIENCE, compiler_options
from tests import jax_versions
from tests.helpers import mesh_of

GATHER, SCATTER, REDUCE = (
    f"xla_gpu_{kind}_combine_threshold_bytes" for kind in ("all_gather", "reduce_scatter", "all_reduce")
)


def options(stage=2, *, mesh=None, hidden_size=None, zero=None, layer_size=0, **sections):
    given = {"train_batch_size": 16, "zero_optimization": {"stage": stage, **(zero or {})}, **sections}
    config = Config.load(given).resolve(world=16, hidden_size=hidden_size)
    before = dict(os.environ)
    found = compiler_options(mesh or gpu_mesh("h100-80g", 16), config, precision_of(config), layer_size)
    assert os.environ == before
    return found


def buckets(gather, reduce, n_shards=16, overlap=False):
    return {GATHER: gather, SCATTER: reduce // n_shards, REDUCE: reduce, **overlap_options(overlap), **PATIENCE}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("sections", [{}, {"bf16": {"enabled": True}, "communication_data_type": "fp16"}])
def test_when_no_size_is_given_a_bucket_is_32_mib_of_any_dtype(stage, sections):
    assert COMBINE_UP_TO_BYTES == 32 * 2**20
    expected = buckets(32 * 2**20, 32 * 2**20)
    assert options(stage, zero={"overlap_comm": False}, **sections) == expected


@pytest.mark.parametrize(
    ("sections", "gathered", "reduced"),
    [
        ({}, 4, 4),
        ({"bf16": {"enabled": True}}, 2, 4),
        ({"communication_data_type": "bf16"}, 4, 2),
        ({"fp16": {"enabled": True}, "communication_data_type": "fp16"}, 2, 2),
    ],
)
def test_given_elements_are_counted_in_the_dtype_that_travels(sections, gathered, reduced):
    sizes = {"allgather_bucket_size": 2e8, "reduce_bucket_size": 5e8}
    assert options(zero=sizes, **sections) == buckets(gathered * 200_000_000, reduced * 500_000_000)


def test_either_size_can_be_given_alone():
    assert options(zero={"allgather_bucket_size": 1000}) == buckets(4000, COMBINE_UP_TO_BYTES)
    assert options(zero={"reduce_bucket_size": 1000}) == buckets(COMBINE_UP_TO_BYTES, 4000)


def test_where_parameters_are_gathered_at_use_only_the_reductions_follow_the_file():
    sizes = {"allgather_bucket_size": 1000, "reduce_bucket_size": 1000}
    assert options(3, zero={**sizes, "overlap_comm": False}) == buckets(COMBINE_UP_TO_BYTES, 4000)
    assert options(3, zero=sizes) == buckets(GATHER_UP_TO_BYTES, 4000, overlap=True)


@pytest.mark.parametrize(("sections", "width"), [({}, 4), ({"bf16": {"enabled": True}}, 2)])
def test_gathers_that_overlap_are_merged_into_one_of_exactly_a_layer_in_a_loop(sections, width):
    expected = buckets(width * 1_000_000, COMBINE_UP_TO_BYTES, overlap=True)
    assert options(3, layer_size=1_000_000, **sections) == expected
    without = {"overlap_comm": False}
    assert options(3, layer_size=1_000_000, zero=without, **sections) == buckets(*[COMBINE_UP_TO_BYTES] * 2)
    assert options(2, layer_size=1_000_000, **sections) == buckets(*[COMBINE_UP_TO_BYTES] * 2)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("given", [None, False, True])
def test_collectives_overlap_at_stage_3_unless_the_file_says_otherwise(stage, given):
    overlap = stage == 3 if given is None else given
    found = options(stage, zero={} if given is None else {"overlap_comm": given})
    assert {name: value for name, value in found.items() if "combine" not in name} == overlap_options(
        overlap
    ) | PATIENCE


@pytest.mark.parametrize(("overlap", "limit"), [(False, 1), (True, 2)])
def test_loops_are_never_pipelined_by_xla_whatever_that_is_called(overlap, limit):
    limits = {"xla_gpu_experimental_parallel_collective_overlap_limit": limit}
    assert overlap_options(overlap) == limits | jax_versions.PIPELINING_OFF


def test_auto_is_the_square_of_the_hidden_size_and_without_one_as_if_not_given():
    zero = {"reduce_bucket_size": "auto", "allgather_bucket_size": "auto"}
    assert options(zero=zero, hidden_size=64) == buckets(COMBINE_UP_TO_BYTES, 4 * 64 * 64)
    assert options(zero=zero) == options()


def test_only_the_shard_axis_divides_a_reduce_scatter():
    mesh = make_mesh(gpu_mesh("h100-80g", 16).devices.flat, replica=2)
    assert options(mesh=mesh) == buckets(COMBINE_UP_TO_BYTES, COMBINE_UP_TO_BYTES, n_shards=8)


def test_a_size_beyond_64_bits_is_the_largest_there_is():
    assert options(zero={"reduce_bucket_size": 2**63 - 1})[REDUCE] == 2**63 - 1


def test_other_devices_get_no_options():
    assert options(mesh=mesh_of(8), zero={"reduce_bucket_size": 1000}) == {}
