"""Trip counts: as XLA notes them, and as read from conditions of many forms; products over nested loops."""

import re

import jax
import jax.numpy as jnp
import pytest

from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.loops import executions, innermost_loops
from jzero.plan.compiled.program import read_program

LOOP = """\
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4] get-tuple-element(%p), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  ROOT %t = (s32[], f32[4]) tuple(%next, %x)
}}

%condition (q: (s32[], f32[4])) -> pred[] {{
  %q = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant({limit})
  ROOT %c = pred[] compare(%j, %limit), direction={direction}
}}

ENTRY %main (a: f32[4]) -> (s32[], f32[4]) {{
  %a = f32[4] parameter(0)
  %start = s32[] {start}
  %init = s32[] copy(%start)
  %tuple = (s32[], f32[4]) tuple(%init, %a)
  ROOT %while = (s32[], f32[4]) while(%tuple), condition=%condition, body=%body{noted}
}}
"""


def runs_of_body(limit=10, step=1, start="constant(0)", direction="LT", noted=""):
    text = LOOP.format(limit=limit, step=step, start=start, direction=direction, noted=noted)
    return executions(parse_module(text))["body"]


@pytest.mark.parametrize(
    ("loop", "runs"),
    [
        ({"limit": 10}, 10),
        ({"limit": 10, "step": 3}, 4),
        ({"limit": 10, "start": "constant(-2)"}, 12),
        ({"limit": 10, "direction": "LE"}, 11),
        ({"limit": 0}, 0),
        ({"noted": ', backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0","step":"1"}}'}, 7),
    ],
)
def test_known_lengths(loop, runs):
    assert runs_of_body(**loop) == (runs, True)


@pytest.mark.parametrize("loop", [{"start": "parameter(1)"}, {"direction": "NE"}, {"step": 0}, {"step": -1}])
def test_lengths_that_are_not_known_count_once(loop):
    assert runs_of_body(**loop) == (1, False)


def test_reading_conditions_agrees_with_what_xla_notes():
    def f(x):
        inner = lambda x, _: (jnp.sin(x) @ x, None)
        outer = lambda x, _: (jax.lax.scan(inner, x, None, length=5)[0] + 1, None)
        return jax.lax.scan(outer, x, None, length=3)[0]

    text = read_program(jax.jit(f).lower(jnp.ones((8, 8))).compile()).hlo_text
    without_notes, n_removed = re.subn(r'"known_trip_count":\{"n":"\d+"\},?', "", text)
    assert n_removed == 2
    noted = executions(parse_module(text))
    assert noted == executions(parse_module(without_notes))
    assert sorted({runs for runs, _ in noted.values()}) == [1, 3, 15]


def test_branches_count_as_taken_and_what_never_runs_as_zero():
    text = """\
%left (x: f32[]) -> f32[] {
  ROOT %x = f32[] parameter(0)
}
%right (y: f32[]) -> f32[] {
  ROOT %y = f32[] parameter(0)
}
%unused (z: f32[]) -> f32[] {
  ROOT %z = f32[] parameter(0)
}
ENTRY %main (i: s32[], a: f32[]) -> f32[] {
  %i = s32[] parameter(0)
  %a = f32[] parameter(1)
  ROOT %c = f32[] conditional(%i, %a, %a), branch_computations={%left, %right}
}
"""
    runs = executions(parse_module(text))
    assert runs["left"] == runs["right"] == (1, True)
    assert runs["unused"] == (0, True)


def test_the_loop_around_a_computation():
    text = LOOP.format(limit=3, step=1, start="constant(0)", direction="LT", noted="")
    assert innermost_loops(parse_module(text)) == {"main": None, "body": "body", "condition": "body"}
