"""Batches made ahead: in order, no more than asked, and what goes wrong is told where it belongs."""

import threading

import pytest

from jzero.errors import ConfigError
from jzero.train.data.prefetch import Prefetch


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_all_come_in_order_and_then_it_is_over(ahead):
    with Prefetch(lambda number: number, 5, ahead=ahead) as batches:
        assert list(batches) == [0, 1, 2, 3, 4]
        assert list(batches) == []


def test_no_more_are_made_than_are_asked_for():
    made, enough = [], threading.Event()

    def make(number):
        made.append(number)
        if number == 3:
            enough.set()
        return number

    with Prefetch(make, ahead=2) as batches:
        assert next(batches) == 0
        assert enough.wait(10)  # two wait, and one is in the hand
    assert made == [0, 1, 2, 3]
    assert not any(thread.name == "batches" for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ConfigError("file x has changed."), ConfigError, "^file x has changed.$"),
        (RuntimeError("broken"), ConfigError, "^data: batch 3 from here cannot be made: RuntimeError: broken.$"),
        (KeyError(), ConfigError, "^data: batch 3 from here cannot be made: KeyError.$"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_an_error_is_raised_in_the_place_of_its_batch(ahead, error, kind, says):
    def make(number):
        if number == 2:
            raise error
        return number

    with Prefetch(make, 9, ahead=ahead) as batches:
        assert [next(batches), next(batches)] == [0, 1]
        with pytest.raises(kind, match=says):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


def test_it_ends_while_a_batch_waits_for_room():
    with Prefetch(lambda number: number, ahead=1) as batches:
        thread = batches._thread
        assert next(batches) == 0
    assert not thread.is_alive()
