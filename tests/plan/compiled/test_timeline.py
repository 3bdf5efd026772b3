"""Simulated schedules of hand-made programs on a toy GPU, for which every product takes 1 second and every gather 2."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.plan.compiled.collectives import read_collectives
from jzero.plan.compiled.timeline import Timeline, simulate
from tests.plan.toy import OVER_8, TOY, done, gather, loop, product, program


def simulated(lines, body=()) -> Timeline:
    module = program(lines, body)
    return simulate(module, read_collectives(module), TOY)


def drawn(line: Timeline) -> list[tuple[str, float, float]]:
    return [(span.name, span.start, span.seconds) for span in line.spans]


@pytest.mark.parametrize(
    ("lines", "spans", "seconds", "waits"),
    [
        ([], [], 0, 0),
        ([gather("a"), done("a")], [("a", 0, 2)], 2, 2),
        ([product("p"), gather("a"), done("a"), product("r")], [("p", 0, 1), ("a", 1, 2), ("r", 3, 1)], 4, 2),
        ([gather("a"), product("p"), done("a")], [("a", 0, 2), ("p", 0, 1)], 2, 1),
        # What started first is sent first, whichever is waited for.
        (
            [gather("a"), gather("b"), product("p"), done("b"), product("r"), done("a")],
            [("a", 0, 2), ("b", 2, 2), ("p", 0, 1), ("r", 4, 1)],
            5,
            3,
        ),
        # A collective without a start and a done holds everything up.
        ([f"%a = f32[16,16] all-gather(%q), {OVER_8}", product("p")], [("a", 0, 2), ("p", 2, 1)], 3, 2),
        # The arrays of a tuple travel together.
        (
            [
                f"%a = ((f32[2,16], f32[2,16]), (f32[16,16], f32[16,16])) all-gather-start(%q, %q), {OVER_8}",
                product("p"),
                "%a_done = (f32[16,16], f32[16,16]) all-gather-done(%a)",
            ],
            [("a", 0, 4), ("p", 0, 1)],
            4,
            3,
        ),
        # Copies have a lane of their own, in each direction.
        (
            [
                gather("a"),
                "%in = (f32[16,16], f32[16,16]{1,0:S(5)}, u32[]) copy-start(%h)",
                "%out = (f32[16,16]{1,0:S(5)}, f32[16,16], u32[]) copy-start(%q)",
                "%came = f32[16,16] copy-done(%in)",
                "%went = f32[16,16]{1,0:S(5)} copy-done(%out)",
                done("a"),
            ],
            [("a", 0, 2), ("in", 0, 1), ("out", 0, 1)],
            2,
            1,
        ),
    ],
)
def test_what_runs_when(lines, spans, seconds, waits):
    found = simulated(["%h = f32[16,16]{1,0:S(5)} bitcast(%q)", *lines])
    assert drawn(found) == spans
    assert found.seconds == seconds
    assert found.waits["wire"] == waits


def test_spans_say_what_they_are():
    half = "%h = bf16[16,16] convert(%q)"
    found = simulated([half, gather("a"), product("p"), done("a")])
    assert [(span.lane, span.kind) for span in found.spans] == [
        ("compute", "kernel"),
        ("wire", "all-gather"),
        ("compute", "product"),
    ]


def test_rounds_of_a_loop_are_one_span_that_repeats():
    found = simulated([product("p"), loop(5)], body=[gather("a", "%x"), product("r", "%x"), done("a")])
    assert drawn(found) == [("p", 0, 1), ("a", 1, 2), ("r", 1, 1)]
    assert [list(span.starts()) for span in found.spans] == [[0], [1, 3, 5, 7, 9], [1, 3, 5, 7, 9]]
    assert (found.seconds, found.waits["wire"], found.busy("wire"), found.busy("compute")) == (11, 5, 10, 6)
    (((round_,),)) = found.loops
    assert (round_.name, round_.start, round_.seconds, round_.rounds) == ("jit(f)/while", 1, 2, 5)


def test_what_is_under_way_when_a_loop_begins_delays_its_first_round():
    found = simulated([gather("o"), loop(5), done("o")], body=[gather("a", "%x"), product("r", "%x"), done("a")])
    assert [(loop_.start, loop_.seconds, loop_.rounds) for (loop_,) in found.loops] == [(0, 4, 1), (4, 2, 4)]
    assert [list(span.starts()) for span in found.spans if span.name == "a"] == [[2], [4, 6, 8, 10]]
    assert found.seconds == 12


OPERATIONS = st.lists(st.sampled_from(["product", "start", "done"]), max_size=14)


def written(operations, source):
    """A schedule that is one: what is done has started, and everything that started is done at the end."""
    lines, in_flight = [], []
    for i, operation in enumerate(operations):
        if operation == "product":
            lines.append(product(f"p{i}", source))
        elif operation == "start":
            lines.append(gather(f"a{i}", source))
            in_flight.append(f"a{i}")
        elif in_flight:
            lines.append(done(in_flight.pop(i % len(in_flight))))
    return lines + [done(name) for name in in_flight]


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, OPERATIONS, st.integers(0, 4))
def test_a_schedule_takes_no_less_than_its_lanes_and_no_more_than_their_sum(outside, inside, rounds):
    found = simulated([*written(outside, "%q"), loop(rounds)], body=written(inside, "%x"))
    compute, wire = found.busy("compute"), found.busy("wire")
    assert compute == outside.count("product") + rounds * inside.count("product")
    assert wire == 2 * (outside.count("start") + rounds * inside.count("start"))
    assert max(compute, wire) <= found.seconds <= compute + wire
    assert found.seconds == compute + sum(found.waits.values())
    for lane in ("compute", "wire"):
        times = sorted((s, s + span.seconds) for span in found.spans if span.lane == lane for s in span.starts())
        assert all(end <= start for (_, end), (start, _) in pairwise(times))
        assert not times or times[-1][1] <= found.seconds
