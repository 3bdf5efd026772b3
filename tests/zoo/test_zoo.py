"""Any model, unmodified, at stage 3: each of the zoo has the values of one device and the collectives of ZeRO."""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from tests.zoo.case import Case, ends_with
from tests.zoo.harness import Leaf, Outcome, all_cases, run_both_ways
from tests.zoo.program import collectives

CASES = all_cases()


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.full] * case.full) for name, case in CASES.items()]
)
def zoo(request) -> tuple[Case, Outcome]:
    """One case after the other: all checks of one follow each other and share its compiled programs."""
    return CASES[request.param], run_both_ways(CASES[request.param])


def assert_leaf_close(got, want, rtol, scale, name):
    """Within `rtol` of the largest entry, or of `scale` if given."""
    assert got.shape == want.shape, name
    largest = (np.abs(want).max() if scale is None else scale) if want.size else 0.0
    worst = np.abs(got - want).max() if want.size else 0.0
    assert worst <= rtol * largest, f"{name}: off by {worst:.3g} where the largest entry is {largest:.3g}"


def test_loss_and_gradients_are_those_of_one_device(zoo):
    case, run = zoo
    np.testing.assert_allclose(run.sharded.losses[0], run.alone.losses[0], rtol=1e-5)
    names = [leaf.name for leaf in run.leaves if leaf.trained]
    largest = max(np.abs(g).max() for g in run.alone.grads[0] if g.size)
    assert largest > 0
    for leaf, got, want in zip(names, run.sharded.grads[0], run.alone.grads[0], strict=True):
        cancels = ends_with(leaf, case.cancelling)
        assert_leaf_close(got, want, case.rtol, largest if cancels else None, leaf)


def test_training_is_that_of_one_device(zoo):
    case, run = zoo
    np.testing.assert_allclose(run.sharded.losses, run.alone.losses, rtol=1e-5)
    assert run.alone.losses[-1] != run.alone.losses[0]
    largest = max(np.abs(p).max() for p in run.alone.params if p.size)
    for leaf, got, want in zip(run.leaves, run.sharded.params, run.alone.params, strict=True):
        cancels = ends_with(leaf.name, case.cancelling)
        assert_leaf_close(got, want, case.rtol, largest if cancels else None, leaf.name)
    for i, (got, want) in enumerate(zip(run.sharded.model_state, run.alone.model_state, strict=True)):
        assert_leaf_close(got, want, case.rtol, None, f"model state {i}")


def n_uses(uses: Mapping[str, int], leaf: Leaf, default: int) -> int:
    end = ends_with(leaf.name, uses)
    return default if end is None else uses[end]


def test_each_leaf_is_gathered_at_most_twice_and_scattered_once(zoo):
    case, run = zoo
    found = list(collectives(run.program))
    assert not [c for c in found if c.inside], "a collective that some devices may not reach"
    sharded = [leaf for leaf in run.leaves if leaf.placement.dim is not None]
    assert sharded, "nothing is sharded, so nothing is tested"
    most, exactly = Counter(), Counter()
    for leaf in sharded:
        parts = math.prod(leaf.placement.shape[d] for d in leaf.scanned)  # a stack travels layer by layer
        size = math.prod(leaf.placement.shard_shape) // parts
        uses = n_uses(case.uses, leaf, 1)
        most[size] += 2 * parts * (uses + n_uses(case.forward_uses, leaf, 0))
        exactly[size] += parts * uses if leaf.trained else 0
    gathered, scattered, others = Counter(), Counter(), Counter()
    for c in found:
        of_kind = {"all_gather": gathered, "reduce_scatter": scattered}.get(c.kind, others)
        of_kind[c.kind if of_kind is others else c.size] += c.times * (c.size if of_kind is others else 1)
    assert not {size: n for size, n in gathered.items() if n > most[size]}, (dict(gathered), dict(most))
    assert +scattered == +exactly, (dict(scattered), dict(exactly))
    assert others.keys() <= {"psum"}, dict(others)
    whole = sum(math.prod(leaf.placement.shape) for leaf in run.leaves if leaf.trained and leaf.placement.dim is None)
    state = sum(x.size for x in run.alone.model_state)
    looked_at = 2 * sum(leaf.trained for leaf in run.leaves)  # the size of each gradient, and whether it fits
    assert others["psum"] <= whole + state + case.synchronised + looked_at + 8, ("sums", others["psum"], whole)
