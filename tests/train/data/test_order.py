"""Orders and shares are pure functions of seed and index."""

import numpy as np
import pytest

from jzero.train.data import order
from jzero.train.data.order import Order, Shares


@pytest.fixture(params=["table", "computed"])
def kind(request, monkeypatch):
    """Both ways of permuting."""
    if request.param == "computed":
        monkeypatch.setattr(order, "_MOST_IN_MEMORY", 0)
    return request.param


@pytest.mark.parametrize("n", [1, 2, 3, 17, 1000])
def test_an_epoch_has_every_row_once(kind, n):
    rows = Order(n, (3,))
    epochs = [[rows.at(epoch * n + i) for i in range(n)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    if n > 10:
        assert len({tuple(epoch) for epoch in epochs}) == 3


def test_an_order_depends_on_the_seed_alone(kind):
    orders = [[Order(100, seed).at(i) for i in (250, 3, 99)] for seed in ((1,), (1,), (2,), (1, 1))]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) == 3


def test_computed_orders_are_mixed(monkeypatch):
    monkeypatch.setattr(order, "_MOST_IN_MEMORY", 0)
    n = 20_000
    places = np.array([Order(n, (0,)).at(i) for i in range(0, n, 5)])
    assert abs(places.mean() / n - 0.5) < 0.02
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.05
    assert (np.abs(np.diff(places)) > n // 100).mean() > 0.95


def test_the_table_is_that_of_earlier_versions():
    assert [Order(5, (3,)).at(i) for i in range(5)] == np.random.default_rng([3, 0]).permutation(5).tolist()


@pytest.mark.parametrize("weights", [[1], [1, 1], [0.7, 0.2, 0.1], [500, 1], [1, 2, 3, 4, 5]])
def test_shares_hold_in_every_block_and_lose_no_row(weights):
    shares = Shares(weights, seed=4)
    seen = [shares.at(i) for i in range(2048)]
    for part, weight in enumerate(weights):
        numbers = [number for its, number in seen if its == part]
        assert numbers == list(range(len(numbers)))
        assert abs(len(numbers) / 2048 - weight / sum(weights)) <= 1 / 1024
    assert seen[2000] == Shares(weights, seed=4).at(2000)
