"""Times of small hand-made programs on a toy GPU, for which every product takes 1 second and every gather 2."""

import pytest

from jzero.plan.compiled.collectives import read_collectives
from jzero.plan.compiled.traffic import loop_traffic
from tests.plan.toy import OVER_8, TOY, done, gather, loop, product, program


def traffic(lines, body=(), nodes=()):
    module = program(lines, body)
    return loop_traffic(module, read_collectives(module, nodes=nodes), TOY)


@pytest.mark.parametrize(
    ("lines", "communication", "products", "beside", "exposed", "share"),
    [
        ([], 0, 0, 0, 0, 1.0),
        ([gather("a"), done("a")], 2, 0, 0, 2, 0.0),
        ([product("p"), gather("a"), done("a"), product("r")], 2, 2, 0, 2, 0.0),
        ([gather("a"), product("p"), done("a")], 2, 1, 1, 1, 1.0),
        ([gather("a"), product("p"), product("r"), product("s"), done("a")], 2, 3, 3, 0, 1.0),
        ([f"%a = f32[16,16] all-gather(%q), {OVER_8}", product("p")], 2, 1, 0, 2, 0.0),
        # One product beside two collectives hides one second of one of them, though all bytes count as overlapped.
        ([gather("a"), gather("b"), product("p"), done("a"), done("b")], 4, 1, 1, 3, 1.0),
        # `b` must be done first: given to `a`, which started first, the products p and r would leave 2 seconds of it.
        (
            [gather("a"), gather("b"), *map(product, "pr"), done("b"), *map(product, "st"), done("a")],
            4,
            4,
            4,
            0,
            1.0,
        ),
        # An all-reduce of the same array sends twice as much.
        (
            [
                "%a = f32[16,16] all-reduce-start(%q), replica_groups=[1,8]<=[8]",
                product("p"),
                "%a_done = f32[16,16] all-reduce-done(%a)",
            ],
            4,
            1,
            1,
            3,
            1.0,
        ),
        # The arrays of a tuple travel as one collective.
        (
            [
                f"%a = ((f32[2,16], f32[2,16]), (f32[16,16], f32[16,16])) all-gather-start(%q, %q), {OVER_8}",
                product("p"),
                "%a_done = (f32[16,16], f32[16,16]) all-gather-done(%a)",
            ],
            4,
            1,
            1,
            3,
            1.0,
        ),
    ],
)
def test_products_hide_what_they_last(lines, communication, products, beside, exposed, share):
    (outside,) = traffic(lines)
    assert (outside.loop, outside.runs, outside.runs_known) == (None, 1, True)
    assert outside.communication_seconds == communication
    assert outside.product_seconds == products
    assert outside.beside_seconds == beside
    assert outside.exposed_seconds == exposed
    assert outside.overlapped_share == share


def test_16_bit_products_are_as_fast_as_their_own_rate_says():
    half = "%h = bf16[16,16] convert(%q)"
    line = "%p = bf16[16,16] dot(%h, %h), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    (outside,) = traffic([half, gather("a"), line, done("a")])
    assert (outside.product_seconds, outside.exposed_seconds) == (0.25, 1.75)


def test_loops_stand_apart_from_the_code_outside():
    scatter = f"%rs = f32[2,16] reduce-scatter(%q), {OVER_8}"
    outside, inside = traffic(
        [loop(), product("p"), scatter],
        body=[gather("a", "%x"), product("r", "%x"), done("a"), product("s", "%x")],
    )
    assert (outside.scattered_bytes, outside.gathered_bytes, outside.product_seconds) == (896, 0, 1)
    assert (outside.communication_seconds, outside.exposed_seconds) == (2, 2)
    assert (inside.loop, inside.op_name, inside.runs, inside.runs_known) == ("body", "jit(f)/while", 5, True)
    assert (inside.gathered_bytes, inside.wire_bytes) == (5 * 896, 5 * 896)
    assert (inside.communication_seconds, inside.product_seconds) == (10, 10)
    assert (inside.beside_seconds, inside.exposed_seconds, inside.overlapped_share) == (5, 5, 1.0)


def test_a_collective_beside_a_loop_gets_only_what_hides_nothing_inside():
    """Five rounds with 1.5 seconds: a gather inside takes one product of f32, one of bf16 is left; 5 / 4 in all."""
    half = ["%h = bf16[16,16] convert(%x)"]
    left = "%l = bf16[16,16] dot(%h, %h), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    outside, inside = traffic(
        [gather("o"), loop(), done("o")], body=[*half, gather("a", "%x"), product("r", "%x"), done("a"), left]
    )
    assert (inside.communication_seconds, inside.exposed_seconds) == (10, 5)
    assert (outside.communication_seconds, outside.exposed_seconds) == (2, 0.75)
    assert (outside.product_seconds, outside.beside_seconds, inside.product_seconds) == (0, 6.25, 6.25)


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        ([0] * 8, 2),  # 448 bytes per second
        ([0] * 4 + [1] * 4, 4),  # four members of a node send 4 x 56
        ([0, 1] * 4, 4),
        (range(8), 16),
    ],
)
def test_the_slowest_link_counts(nodes, seconds):
    (outside,) = traffic([gather("a"), done("a")], nodes=list(nodes))
    assert outside.communication_seconds == seconds


def test_what_is_no_gather_sends_through_one_card():
    lines = ["%a = f32[16,16] all-to-all(%q), replica_groups=[1,8]<=[8], dimensions={0}"]
    (outside,) = traffic(lines, nodes=[0] * 4 + [1] * 4)
    assert (outside.other_bytes, outside.communication_seconds) == (896, 16)
