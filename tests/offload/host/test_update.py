"""Taking an optimizer's update apart, and the sentence for one that cannot be."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jzero.errors import ConfigError
from jzero.offload.host.update import plan_update
from jzero.sharding.placement import Placement
from jzero.sharding.trees import owners

PARAMS = {"head": jax.ShapeDtypeStruct((4, 6), jnp.float32), "wte": jax.ShapeDtypeStruct((8, 4), jnp.float32)}


def planned(optimizer, on_host=(True, True)):
    state = jax.eval_shape(optimizer.init, PARAMS)
    flat = jax.tree.leaves(owners(state, PARAMS))
    lie = [Placement(x.shape) for x in PARAMS.values()]
    with_args = optax.with_extra_args_support(optimizer)
    return plan_update(with_args, PARAMS, state, flat, list(PARAMS), lie, on_host)


def test_each_parameter_gets_its_own_moments_and_shares_the_step_count():
    plan = planned(optax.adamw(1e-3))
    head, wte = plan.leaves
    assert (head.name, wte.name, head.in_pieces) == ("head", "wte", True)
    assert not set(head.outputs) & set(wte.outputs)
    assert len(head.outputs) == 3
    assert set(head.reads) & set(wte.reads) == {2}  # the count of steps comes first in the state
    assert plan.rest_outputs == (0,)


def test_what_stays_on_the_device_is_updated_with_the_rest():
    plan = planned(optax.adamw(1e-3), on_host=(False, True))
    assert [leaf.name for leaf in plan.leaves] == ["wte"]
    assert len(plan.rest_outputs) == 1 + 3


def test_an_update_that_needs_a_whole_parameter_is_kept_whole():
    assert [leaf.in_pieces for leaf in planned(optax.lamb(1e-3)).leaves] == [False, False]


def test_an_update_that_couples_parameters_is_refused_by_name():
    coupled = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    with pytest.raises(ConfigError, match=r"update of head reads wte.*offload_optimizer\.device to none"):
        planned(coupled)
