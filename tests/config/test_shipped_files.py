"""Every file in configs/ is read, checked and resolved, and every run file's model has shapes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

from jzero import models
from jzero.config import Config, load_run
from jzero.train.data import VOCAB_SIZE

CONFIGS = Path(__file__).parents[2] / "configs"
DEEPSPEED_FILES = sorted(CONFIGS.glob("ds_*.json"))
RUN_FILES = sorted(set(CONFIGS.glob("*.json")) - set(DEEPSPEED_FILES))


def test_there_is_a_deepspeed_file_for_each_stage():
    assert [Config.load(path).zero_optimization.stage for path in DEEPSPEED_FILES] == [0, 1, 2, 3]


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.name)
def test_a_run_file_resolves_and_its_model_has_shapes(path):
    run = load_run(path)
    model = models.build(run.model)
    resolved = run.deepspeed.resolve(
        world=8, training_arguments=run.training_arguments, hidden_size=model.hidden_size, num_training_steps=1000
    )
    assert resolved.train_batch_size == 8 * (
        run.training_arguments.per_device_train_batch_size * run.training_arguments.gradient_accumulation_steps
    )
    assert resolved.notes == []
    assert model.vocab_size >= VOCAB_SIZE
    assert run.data.seq_len <= model.seq_len
    if isinstance(model.factory, nn.Module):
        shapes = jax.eval_shape(model.factory.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    else:
        shapes = nnx.state(nnx.eval_shape(lambda: model.factory(nnx.Rngs(0))), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(shapes)) > 0


def test_the_demo_is_what_the_readme_says():
    run = load_run(CONFIGS / "demo.json")
    assert run.deepspeed.zero_optimization.stage == 3
    assert run.training_arguments.bf16 or run.training_arguments.fp16
    assert run.data.source == "stdlib"
