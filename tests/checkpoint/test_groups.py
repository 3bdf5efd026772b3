"""A checkpoint of flat stage 3, of two levels or of MiCS continues under any other of them, on any mesh."""

import functools
import itertools

import jax
import numpy as np
import pytest

from tests.helpers import host
from tests.zero.two_levels import data, net

LAYOUTS = [("flat", 8, 1), ("two levels", 8, 2), ("MiCS", 8, 4), ("two levels", 6, 2), ("flat", 3, 1)]
SOME = {("flat", "two levels"), ("two levels", "MiCS"), ("MiCS", "flat")}
PAIRS = [(a, b) for a, b in itertools.permutations(LAYOUTS, 2)]
ROWS = 48


@functools.cache
def engine(kind, n_devices, replica):
    return net(kind, replica, ROWS // (2 * n_devices), n_devices=n_devices)


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        pytest.param(a, b, marks=[] if (a[0], b[0]) in SOME and a[1] == b[1] == 8 else pytest.mark.full)
        for a, b in PAIRS
    ],
    ids=str,
)
def test_it_goes_on_under_every_other_layout(saved, loaded, tmp_path):
    first, second = engine(*saved), engine(*loaded)
    batches = data(4, 24, 1)
    first.state = first.functional.init(np.uint32(3))
    for batch in batches[:2]:
        first.train_batch(batch)
    first.save_checkpoint(tmp_path / "c")
    state = host(first.params)
    expected = [float(first.train_batch(batch)["loss"]) for batch in batches[2:]]
    second.state = second.functional.init(np.uint32(5))
    second.load_checkpoint(tmp_path / "c")
    jax.tree.map(np.testing.assert_array_equal, host(second.params), state)
    found = [float(second.train_batch(batch)["loss"]) for batch in batches[2:]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
