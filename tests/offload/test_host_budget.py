"""What offloading takes of the host, counted, and refused where there is not that much."""

import jax
import jax.numpy as jnp
import pytest

from jzero.errors import ConfigError
from jzero.offload import host_budget as b
from jzero.sharding.mesh import make_mesh
from jzero.sharding.placement import place
from jzero.sharding.trees import stored
from jzero.zero.state import TrainState

SHAPE = (1024, 512)
PARAMS = 1024 * 512


def taken(*, at_use, n_micro=1, n_groups=1):
    placement = place(SHAPE, 8, n_groups=n_groups)
    leaf, rest = jax.ShapeDtypeStruct(SHAPE, jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    tree = TrainState({"w": leaf}, [{"w": leaf}, {"w": leaf}], None, None, rest, rest, rest)
    places = jax.tree.map(lambda x: placement if x is leaf else place((), 8), tree)
    on_host = jax.tree.map(lambda x: x is leaf, tree)
    state = stored(places, tree, make_mesh(replica=n_groups), on_host)
    return b.budget(state, {"w": True}, {"w": placement}, at_use=at_use, n_micro=n_micro)


def test_the_optimizer_alone():
    found = taken(at_use=False)
    assert (found.state, found.gradients) == (12 * PARAMS / 8, 0)
    assert (found.to_device, found.to_host) == (16 * PARAMS / 8, 12 * PARAMS / 8)
    assert found.seconds == pytest.approx(2 * PARAMS / 25e9)


def test_parameters_are_fetched_forward_and_backward_and_gradients_leave():
    found = taken(at_use=True)
    assert (found.state, found.gradients) == (12 * PARAMS / 8, 4 * PARAMS / 8)
    assert (found.to_device, found.to_host) == ((12 + 2 * 4 + 2 * 4) * PARAMS / 8, (12 + 4) * PARAMS / 8)


def test_accumulation_keeps_a_sum_beside_the_gradients():
    once, thrice = taken(at_use=True), taken(at_use=True, n_micro=3)
    assert thrice.gradients == 2 * once.gradients
    assert thrice.to_device > once.to_device


def test_at_two_levels_a_step_keeps_its_group_s_part_and_the_sums_of_its_gradients_there():
    flat, two = (taken(at_use=True, n_micro=3, n_groups=n) for n in (1, 2))
    assert two.state == flat.state
    assert two.gradients == (2 * 4 + 4) * PARAMS / 4  # sums and gradients, and the part itself
    assert two.to_device == (12 + 4 + 4 + 4) * PARAMS / 8 + (4 * 6 + 4 * 4 + 4) * PARAMS / 4
    assert two.to_host == (12 + 4) * PARAMS / 8 + (4 * 5 + 4) * PARAMS / 4
    assert taken(at_use=False, n_groups=2) == taken(at_use=False)


def test_too_little_memory_is_a_sentence(monkeypatch):
    needed = b.Budget(state=2 * 10**9, gradients=10**9, to_device=0, to_host=0)
    monkeypatch.setattr(b, "free_memory", lambda: 20 * 10**9)
    with pytest.raises(ConfigError, match=r"takes 24 GB of host memory \(8 devices.*20 GB are free.*ratio"):
        b.check_host_memory(needed, 8, "gpu")
    b.check_host_memory(needed, 6, "gpu")


def test_the_pinned_pool_of_gpus_has_a_limit_of_its_own(monkeypatch):
    needed = b.Budget(state=100 * 10**9, gradients=0, to_device=0, to_host=0)
    monkeypatch.setattr(b, "free_memory", lambda: 10**12)
    monkeypatch.delenv(b.POOL_LIMIT, raising=False)
    with pytest.raises(ConfigError, match=r"pins at most 64 GB; set the environment variable .*LIMIT_GB=108"):
        b.check_host_memory(needed, 1, "gpu")
    b.check_host_memory(needed, 1, "cpu")
    monkeypatch.setenv(b.POOL_LIMIT, "108")
    b.check_host_memory(needed, 1, "gpu")


def test_free_memory_is_known_here():
    assert b.free_memory() is None or b.free_memory() > 0
