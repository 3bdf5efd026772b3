"""`jzero.remat.policy`: the names that a configuration may give are those that JAX has a policy for."""

from jzero.base.remat_policies import REMAT_POLICIES
from jzero.jaxpr.policies import POLICIES


def test_every_name_has_a_policy_and_every_policy_a_name():
    assert tuple(POLICIES) == REMAT_POLICIES
