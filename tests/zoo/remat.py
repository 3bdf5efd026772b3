"""Every rematerialisation policy that JAX names, in models that ask for it by Flax's own transform."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from tests.zoo.case import Case, floats

P = jax.checkpoint_policies
OFFLOADED = {"offload_src": "device", "offload_dst": "pinned_host"}
POLICIES: dict[str, Callable | None] = {
    "no policy": None,
    "everything_saveable": P.everything_saveable,
    "nothing_saveable": P.nothing_saveable,
    "dots_saveable": P.dots_saveable,
    "dots_with_no_batch_dims_saveable": P.dots_with_no_batch_dims_saveable,
    "save_anything_except_these_names": P.save_anything_except_these_names("hidden"),
    "save_any_names_but_these": P.save_any_names_but_these("hidden"),
    "save_only_these_names": P.save_only_these_names("hidden"),
    "save_only_these_names, of a weight": P.save_only_these_names("weight"),
    "save_from_both_policies": P.save_from_both_policies(P.dots_saveable, P.save_only_these_names("out")),
    "offload_dot_with_no_batch_dims": P.offload_dot_with_no_batch_dims(**OFFLOADED),
    "save_and_offload_only_these_names": P.save_and_offload_only_these_names(
        names_which_can_be_saved=["out"], names_which_can_be_offloaded=["hidden"], **OFFLOADED
    ),
}
# Two have a second name.
assert P.checkpoint_dots is P.dots_saveable
assert P.checkpoint_dots_with_no_batch_dims is P.dots_with_no_batch_dims_saveable

D, HIDDEN = 131, 136


def mlp(x, up, down):
    hidden = checkpoint_name(jnp.tanh(x @ checkpoint_name(up, "weight")), "hidden")
    return x + checkpoint_name(jnp.sin(hidden @ down.T), "out")


class Block(nnx.Module):
    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        self.up = nnx.Param(init(rngs.params(), (D, HIDDEN), jnp.float32))
        self.down = nnx.Param(init(rngs.params(), (D, HIDDEN), jnp.float32))

    def __call__(self, x):
        return mlp(x, self.up[...], self.down[...])


class Model(nnx.Module):
    def __init__(self, rngs, policy, scanned=False):
        self.scanned, self.policy = scanned, policy
        self.first = nnx.Linear(129, D, rngs=rngs)  # 16899 elements that 8 does not divide
        if scanned:
            self.blocks = nnx.split_rngs(splits=3)(nnx.vmap(Block))(rngs)
        else:
            self.block = Block(rngs)

    def __call__(self, x):
        run = nnx.remat(lambda block, x: block(x), policy=self.policy, prevent_cse=not self.scanned)
        x = self.first(x)
        return (
            nnx.scan(run, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.blocks, x)
            if self.scanned
            else run(self.block, x)
        )


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        return mlp(x, self.param("up", init, (D, HIDDEN)), self.param("down", init, (D, HIDDEN)))


class LinenModel(nn.Module):
    policy: Callable | None
    scanned: bool = False

    @nn.compact
    def __call__(self, x):
        block = nn.remat(LinenBlock, policy=self.policy, prevent_cse=not self.scanned)
        x = nn.Dense(D)(x)
        if not self.scanned:
            return block()(x)
        scan = nn.scan(
            lambda layer, x, _: (layer(x), None), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        return scan(block(), x, None)[0]


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(129)}


def both(name, policy, number, scanned=False):
    """A policy in both kinds of models, every other one in NNX and in Linen alone unless all tests run."""
    nnx_model = lambda rngs: Model(rngs, policy, scanned)
    return {
        f"nnx {name}": Case(nnx_model, squares, BATCH, full=number % 2 == 1),
        f"linen {name}": Case(LinenModel(policy, scanned), squares, BATCH, full=number % 2 == 0),
    }


CASES = {
    name: case
    for number, (policy_name, policy) in enumerate(POLICIES.items())
    for name, case in {
        **both(policy_name, policy, number),
        **(
            both(f"scanned, {policy_name}", policy, number + 1, True)
            if policy_name in ("no policy", "dots_saveable")
            else {}
        ),
    }.items()
}
