"""A compiler that fails is a sentence that says what to do instead."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jzero.errors import JzeroError
from jzero.plan import Setting
from jzero.plan.search import workload as module
from jzero.plan.search.workload import workload_of


def test_a_compiler_that_fails_is_a_sentence(monkeypatch):
    def fails(**_):
        raise jax.errors.JaxRuntimeError("INTERNAL: no tile sizes\n\tand much more")

    monkeypatch.setattr(module, "compile_training", fails)
    run = workload_of(
        model=lambda rngs: nnx.Linear(8, 8, rngs=rngs),
        loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        config={"train_batch_size": 8, "optimizer": {"type": "AdamW"}},
        sample_batch=jax.ShapeDtypeStruct((8, 8), jnp.float32),
    )
    row = run.estimate(Setting(0, "nothing", 1, 1), batch=False)
    with pytest.raises(JzeroError) as error:
        run.compile(row, batch=False)
    assert str(error.value).startswith("XLA cannot compile stage 0 for h100-80g (INTERNAL: no tile sizes); plan by")
