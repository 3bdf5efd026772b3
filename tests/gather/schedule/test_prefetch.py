"""The schedule of gathers as a pure function: what is on its way, what is kept, and that the two passes agree."""

import dataclasses
import math
from collections import Counter

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.gather.schedule.prefetch import Fence, Limits, look_ahead
from jzero.gather.unit.deferred import DeferredParam
from jzero.gather.unit.split_vjp import SplitVJP
from jzero.gather.unit.units import Unit, on_its_own
from jzero.sharding.placement import Placement

many = settings(max_examples=300, deadline=None)
UNLIMITED = Limits(10**9, 10**9, 10**9)


def parameter(leaf, size, dtype=jnp.float32, in_advance=False):
    return DeferredParam(leaf, f"w{leaf}", Placement((size,), 0, 1), jnp.dtype(dtype), in_advance=in_advance)


def unit(*gather_keys, needs=None):
    needs = tuple(needs or [True] * len(gather_keys))
    nothing = lambda *_: ([], [])
    split_vjp = SplitVJP(nothing, nothing, needs, (), (), (), recomputes=True)
    return Unit("dot_general", gather_keys, (), split_vjp)


def blocks(n, size=10):
    return [unit(parameter(i, size)) for i in range(n)]


def size_of(gather_keys):
    return sum(math.prod(f.placement.shape) for f in gather_keys)


def forms_of(step, backward):
    """What a unit needs in a pass."""
    if isinstance(step, Fence):
        return []
    wanted = zip(step.gather_keys, step.split_vjp.needs, strict=True)
    return [f for f, needed in wanted if (needed or not backward) and not f.in_advance]


class Told:
    """The orders of a whole step as one list of positions: the units forward, then backward."""

    def __init__(self, steps, limits):
        self.steps, self.n = steps, len(steps)
        self.schedules = look_ahead(steps, limits)
        self.path = [*range(self.n), *reversed(range(self.n))]
        self.fences = {p for p, i in enumerate(self.path) if isinstance(steps[i], Fence)}
        self.units = [p for p in range(2 * self.n) if p not in self.fences]

    def orders(self, p):
        schedule = self.schedules[self.path[p]]
        return schedule.ahead if p < self.n else schedule.back

    def needed(self, p):
        return forms_of(self.steps[self.path[p]], p >= self.n)

    def position(self, number, like):
        """Where a unit is in the same pass as position `like`."""
        return number if like < self.n else 2 * self.n - 1 - number

    def payload(self):
        """Every parameter that is handed on: what, from which position, to which."""
        return [(f, p, self.position(to, p)) for p in self.units for f, to in self.orders(p).send]

    def kept(self):
        """Every parameter that stays with its unit between the passes: what, and at which position."""
        return [(f, i) for i, s in self.schedules.items() for f in s.kept]

    def gathered(self):
        """How often each parameter is gathered."""
        return Counter(f for p in self.units for f in self.orders(p).gather)

    def alive(self, p):
        """The parameters that are whole while a position runs, each counted once."""
        passing = {f for f, start, end in self.payload() if start <= p < end}
        resting = {f for f, i in self.kept() if i <= p < 2 * self.n - 1 - i}
        return {*self.needed(p), *passing, *resting}

    def is_use(self, gather_key, p):
        """Whether a position has a parameter for its own sake, so that handing it on is to reuse it."""
        return gather_key in self.needed(p)


DTYPES = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int32])
ONE_IN_SIX = st.sampled_from([False] * 5 + [True])


@st.composite
def chains(draw):
    """Up to ten units over up to six parameters, some used again, some not needed backward, and loops between."""
    leaves = [
        parameter(i, draw(st.integers(1, 20)), draw(DTYPES), in_advance=draw(ONE_IN_SIX))
        for i in range(draw(st.integers(1, 6)))
    ]
    steps = []
    for _ in range(draw(st.integers(1, 10))):
        if draw(ONE_IN_SIX):
            steps.append(Fence(draw(st.integers(0, 50))))
        else:
            gather_keys = draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=3, unique=True))
            steps.append(unit(*gather_keys, needs=[draw(st.booleans()) for _ in gather_keys]))
    return steps


BOUND = st.sampled_from([0, 1, 5, 10, 20, 40, 100, 10**9])
LIMITS = st.builds(Limits, BOUND, BOUND, BOUND)


@many
@given(chains(), LIMITS)
def test_every_parameter_is_there_once_where_it_is_needed(steps, limits):
    told = Told(steps, limits)
    assert {*told.schedules} == {i for i, step in enumerate(steps) if isinstance(step, Unit)}
    for p in told.units:
        orders, schedule = told.orders(p), told.schedules[told.path[p]]
        assert len(orders.gather) == len(set(orders.gather))
        kept = [f for f in told.needed(p) if p >= told.n and f in schedule.kept]
        own = [f for f in orders.gather if f in told.needed(p)]
        assert Counter([*own, *kept, *(f for f, _ in orders.receive)]) == Counter(told.needed(p))
        # What a unit hands on it has, and what it gathers for others it hands on.
        assert {f for f, _ in orders.send} <= {*orders.gather, *told.needed(p)}
        assert {*orders.gather} <= {*told.needed(p), *(f for f, _ in orders.send)}


@many
@given(chains(), LIMITS)
def test_what_one_unit_hands_on_exactly_one_later_unit_of_the_same_pass_expects(steps, limits):
    told = Told(steps, limits)
    arrivals = [(f, told.position(producer, p), p) for p in told.units for f, producer in told.orders(p).receive]
    assert Counter(arrivals) == Counter(told.payload())
    assert max(Counter(arrivals).values(), default=1) == 1
    for _, start, end in arrivals:
        assert start < end
        assert (start < told.n) == (end < told.n)


@many
@given(chains(), LIMITS)
def test_nothing_is_gathered_ahead_across_a_loop_or_travels_in_a_dtype_without_cotangents(steps, limits):
    told = Told(steps, limits)
    for gather_key, start, end in told.payload():
        assert jnp.issubdtype(gather_key.dtype, jnp.inexact)
        if not told.is_use(gather_key, start):
            assert not told.fences & {*range(start, end)}
    assert all(jnp.issubdtype(f.dtype, jnp.inexact) for f, _ in told.kept())


@many
@given(chains())
def test_without_room_every_unit_gathers_for_itself(steps):
    for i, schedule in look_ahead(steps, Limits(0, 0, 0)).items():
        assert dataclasses.replace(schedule, scatters_first=False) == on_its_own(steps[i])


@many
@given(chains(), LIMITS)
def test_no_more_is_alive_than_allowed_or_than_the_unit_itself_needs(steps, limits):
    told = Told(steps, limits)
    for p in range(2 * told.n):
        assert size_of(told.alive(p)) <= max(limits.live, size_of(told.needed(p)))


@many
@given(chains(), BOUND, BOUND)
def test_another_gather_starts_only_while_less_than_the_bucket_is_on_its_way(steps, prefetch, live):
    told = Told(steps, Limits(prefetch, live, 0))
    for p in told.units:
        if started := told.orders(p).send:
            before_the_last = [f for f, start, end in told.payload() if start <= p < end]
            before_the_last.remove(started[-1][0])
            assert size_of(before_the_last) < prefetch


@many
@given(chains(), BOUND)
def test_what_is_used_again_soon_is_kept_and_nothing_else(steps, reuse):
    told = Told(steps, Limits(0, 10**9, reuse))
    sizes = [s.size if isinstance(s := steps[i], Fence) else size_of(told.needed(p)) for p, i in enumerate(told.path)]
    kept = {(f, i, 2 * told.n - 1 - i) for f, i in told.kept()} | {*told.payload()}
    last, expected = {}, set()
    for p in range(2 * told.n):
        for gather_key in told.needed(p):
            start = last.get(gather_key, -1)
            together = start >= 0 and ((start < told.n) == (p < told.n) or told.path[start] == told.path[p])
            if together and jnp.issubdtype(gather_key.dtype, jnp.inexact) and sum(sizes[start + 1 : p]) < reuse:
                expected.add((gather_key, start, p))
            last[gather_key] = p
    assert kept == expected


@many
@given(chains(), LIMITS, BOUND)
def test_keeping_more_never_gathers_more_often(steps, limits, reuse):
    often = lambda *limits: Told(steps, Limits(*limits)).gathered().total()
    less, more = sorted([limits.reuse, reuse])
    assert often(0, limits.live, more) <= often(0, limits.live, less)
    assert often(10**9, 10**9, 10**9) <= often(*dataclasses.astuple(limits)) <= often(0, 0, 0)


def gathering(steps, limits):
    """The number of the parameters that each unit gathers, forward and then backward."""
    told = Told(steps, limits)
    return [[f.leaf for f in told.orders(p).gather] for p in told.units]


def test_a_bucket_of_one_block_has_each_block_gather_the_next():
    bucket = Limits(10, 10**9, 0)
    assert gathering(blocks(4), bucket) == [[0, 1], [2], [3], [], [3, 2], [1], [0], []]
    first, *_, last = look_ahead(blocks(4), bucket).values()
    w = [b.gather_keys[0] for b in blocks(4)]
    assert (first.ahead.send, first.ahead.receive) == (((w[1], 1),), ())
    assert (last.ahead.gather, last.ahead.receive) == ((), ((w[3], 2),))
    assert (last.back.gather, last.back.send) == ((w[3], w[2]), ((w[2], 2),))
    assert first.back.receive == ((w[0], 1),)


def test_a_bucket_that_is_not_full_takes_one_more_parameter():
    assert gathering(blocks(4), Limits(11, 10**9, 0)) == [[0, 1, 2], [3], [], [], [3, 2, 1], [0], [], []]
    assert gathering(blocks(2), Limits(1, 10**9, 0)) == [[0, 1], [], [1, 0], []]


def test_what_may_be_alive_bounds_the_bucket():
    assert gathering(blocks(4), Limits(10**9, 20, 0)) == gathering(blocks(4), Limits(10, 10**9, 0))
    assert gathering(blocks(4), Limits(10**9, 19, 0)) == [[0], [1], [2], [3], [3], [2], [1], [0]]


def test_the_last_blocks_stay_for_the_backward_pass():
    # Between its two uses block 3 sees no other gathered, block 2 sees block 3 twice, and so on.
    steps = blocks(4)
    kept = lambda reuse, live=10**9: [i for i, s in look_ahead(steps, Limits(0, live, reuse)).items() if s.kept]
    assert [kept(reuse) for reuse in (0, 1, 21, 41, 61)] == [[], [3], [2, 3], [1, 2, 3], [0, 1, 2, 3]]
    assert [kept(10**9, live) for live in (0, 10, 20, 30, 40)] == [[3], [3], [2, 3], [1, 2, 3], [0, 1, 2, 3]]


def test_a_tied_embedding_stays_over_the_blocks_in_both_passes():
    embedding, block = parameter(9, 5), parameter(0, 10)
    steps = [unit(embedding), unit(block), unit(embedding)]
    first, middle, last = look_ahead(steps, UNLIMITED).values()
    assert (first.ahead.gather, first.ahead.send) == ((embedding, block), ((block, 1), (embedding, 2)))
    assert last.kept == {embedding}
    assert middle.kept == {block}
    assert (last.back.send, first.back.receive) == (((embedding, 0),), ((embedding, 2),))
    assert not any((*last.back.gather, *middle.back.gather, *first.back.gather))
    # One block too far, or no room beside the block: each use gathers for itself, but for the one next to its own.
    for limits in (Limits(0, 10**9, 10), Limits(0, 14, 10**9)):
        assert gathering(steps, limits) == [[9], [0], [9], [], [0], [9]]


def test_a_parameter_at_hand_is_not_gathered_again_for_a_later_unit():
    w = parameter(0, 10)
    steps = [unit(parameter(1, 10)), unit(w), unit(w)]
    assert gathering(steps, Limits(10, 10**9, 0)) == [[1, 0], [], [], [0], [1], []]


def test_no_gather_runs_beside_a_loop():
    first, second, third = (parameter(i, 10) for i in range(3))
    steps = [unit(first), Fence(100), unit(second), unit(third)]
    limits = Limits(10**9, 10**9, 0)
    assert gathering(steps, limits) == [[0], [1, 2], [], [2, 1], [], [0]]
    assert [s.scatters_first for s in look_ahead(steps, limits).values()] == [False, True, False]


def test_what_is_not_needed_backward_is_not_gathered_there():
    bias, w = parameter(0, 3), parameter(1, 10)
    steps = [unit(w, bias, needs=[True, False]), unit(w)]
    assert gathering(steps, Limits(0, 0, 0)) == [[1, 0], [1], [1], [1]]


@pytest.mark.parametrize("limits", [Limits(0, 0, 0), UNLIMITED])
def test_integers_and_parameters_gathered_in_advance_do_not_travel(limits):
    steps = [unit(parameter(0, 10)), unit(parameter(1, 10, jnp.int32), parameter(2, 10, in_advance=True))]
    assert [s.ahead for s in look_ahead(steps, limits).values()] == [on_its_own(s).ahead for s in steps]
