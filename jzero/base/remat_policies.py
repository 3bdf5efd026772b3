"""The names of rematerialisation policies; `jzero.jaxpr.policies` has what they mean, which takes JAX."""

JAX_POLICIES = (
    "nothing_saveable",
    "everything_saveable",
    "dots_saveable",
    "checkpoint_dots",
    "dots_with_no_batch_dims_saveable",
    "checkpoint_dots_with_no_batch_dims",
)
"""Those of `jax.checkpoint_policies` that take no arguments."""

REMAT_POLICIES = (*JAX_POLICIES, "offload")
"""All that a configuration or `jzero.remat` may name."""
