"""Memory over the schedule, against the compiler's own figures and against what is known of the model."""

import numpy as np
import pytest

from jzero.errors import JzeroError
from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.memory_use import read_memory_use
from jzero.plan.compiled.owners import readable
from jzero.plan.memory_use import PARTS
from tests.plan.conftest import LAYER, LAYERS, ROWS, D


@pytest.fixture(scope="module")
def program(compiled_row):
    return compiled_row.compiled.program


@pytest.fixture(scope="module")
def use(program):
    return program.memory_use


def test_the_peak_is_the_compilers(use, program):
    assert use.peak == pytest.approx(program.memory.peak, abs=1024)
    assert use.peak <= use.allocated <= program.memory.argument + program.memory.temp + 1024
    assert use.total[use.peak_at] == use.peak
    assert sum(holder.n_bytes for holder in use.holders) == use.peak


def test_what_lasts_is_there_all_the_time(use, compiled_row):
    assert set(use.n_bytes) == set(PARTS)
    for part in ("parameters", "optimizer_state"):
        np.testing.assert_array_equal(use.n_bytes[part], compiled_row.bytes_by_part[part])
    assert use.n_bytes["rest"].min() >= 2 * ROWS * D  # the batch


def test_parts_come_and_go_as_the_passes_do(use):
    (_, backward, update), end = use.phases, len(use.total)
    assert [phase.name for phase in use.phases] == ["forward", "backward", "update"]
    assert 0 == use.phases[0].start < backward.start < update.start < end
    largest = {part: use.n_bytes[part].max() for part in PARTS}
    in_update = {part: use.n_bytes[part][(update.start + end) // 2 :].max() for part in PARTS}
    # One layer's parameters are gathered in bf16 while it runs, a second one's ahead; none while they are updated.
    assert 2 * LAYER <= largest["gathered_weights"] <= 2 * 2 * LAYER + 1024
    assert in_update["gathered_weights"] == 0
    # The forward pass keeps what each layer reads; when the backward pass is over it is gone.
    assert use.n_bytes["activations"][0] == 0
    assert use.n_bytes["activations"][backward.start] >= 2 * LAYERS * ROWS * (D + 4 * D)
    assert in_update["activations"] < 1024
    # Gradients belong to the backward pass: shards of all layers in fp32, and a matrix's before it is scattered.
    assert use.n_bytes["gradients"][: backward.start // 2].max() == 0
    shards = 4 * LAYERS * LAYER // 8
    assert use.n_bytes["gradients"][update.start] == pytest.approx(shards, abs=1024)
    assert largest["gradients"] >= shards + 4 * LAYER // 2


def test_the_closed_forms_curve_peaks_where_its_sum_does(planned):
    for row in planned.rows:
        use = row.closed_form_memory_use
        assert use.peak == row.closed_form_peak
        assert {part: n[use.peak_at] for part, n in use.n_bytes.items()} == row.bytes_by_part
    use = planned.rows[0].closed_form_memory_use
    half = len(use.total) // 2
    assert use.n_bytes["gradients"][: half // 2].max() == 0  # not in the forward pass
    assert use.n_bytes["activations"][half] > use.n_bytes["activations"][0]


def test_the_largest_holders_are_what_a_layer_keeps_for_the_backward_pass(use):
    kept = [holder for holder in use.holders if holder.part == "activations"]
    assert f"[{LAYERS},{ROWS},{4 * D}]" in kept[0].shape  # tanh of all layers


def test_without_the_compilers_files_it_says_so(tmp_path, program):
    with pytest.raises(JzeroError, match="did not write down its buffers"):
        read_memory_use(tmp_path, parse_module(program.hlo_text))


def test_names_become_readable():
    stack = "jit(step)/shard_map/transpose(jvp())/while/body/closed_call/"
    assert readable(stack + "(scatter[h.w for scan]/reduce_scatter:scatter[h.v for scan]/reduce_scatter)") == (
        "backward: scatter[h.w for scan]/reduce_scatter and 1 more"
    )
    assert readable("jit(step)/shard_map/jvp(jit(silu))/mul") == "silu/mul"
    assert readable("") == ""
