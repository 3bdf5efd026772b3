"""What is said of processes that were started differently; that they do say it is for tests/multiprocess."""

import pytest

from jzero.launch import agreement
from jzero.launch.agreement import agree, disagreement, facts_of_process, tell_failure

ENDING = ". Start all of them with the same command, files and versions."


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ([{"a": 1}, {"a": 2}], "a is 2 on process 1 and 1 on process 0"),
        ([{"a": 1}, {"a": 2}, {"a": 2}], "a is 1 on process 0 and 2 on processes 1 and 2"),
        ([{"a": 1}, {"a": 1}, {}, {"a": 3}], "a is 3 on process 3, not given on process 2 and 1 on processes 0 and 1"),
        ([{"a": None}, {"a": "auto"}], 'a is "auto" on process 1 and not given on process 0'),
        (
            [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 1}],
            "a is 3 on process 2 and 1 on processes 0 and 1; b is",
        ),
        ([{"a": i == 7} for i in range(64)], "a is true on process 7 and false on 63 processes, 0 the first of them"),
        ([{"a": "x"}, {"a": "y" * 500}], f'a is "{"y" * 79}... on process 1 and "x" on process 0'),
        (
            [{str(i): 0 for i in range(9)}, {str(i): 1 for i in range(9)}],
            "4 is 1 on process 1 and 0 on process 0; 4 more",
        ),
    ],
)
def test_the_fact_its_values_and_the_odd_ones_are_named(facts, says):
    sentence = disagreement(facts)
    assert sentence.startswith("The processes were started differently: ")
    assert says in sentence
    assert sentence.endswith(ENDING)


def test_equal_facts_agree():
    assert disagreement([{"a": 1.5, "b": [1, {"c": None}]}] * 3) is None
    assert disagreement([{"a": None}, {}]) is None  # not given, in two ways


def test_a_process_that_is_alone_says_nothing():
    agree({"a": object()})
    tell_failure("nobody hears it")


def test_what_decides_how_programs_run_is_known():
    facts = facts_of_process()
    assert facts["the number of local devices"] == 8
    assert {"jzero", "jax", "jaxlib", "flax", "optax", "Python", "jax_enable_x64"} <= facts.keys()


def test_one_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(agreement, "wait_for", lambda key, seconds: "{}" if key.endswith("/0") else None)
    assert agreement._judge(0, 2) == "Process 1 has not come as far as the others within 1800 s; see what it says."
