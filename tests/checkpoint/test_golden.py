"""A checkpoint that jzero 0.1.0 wrote before its files moved: it still loads, at every stage and on other meshes.

`tests/golden/checkpoint-0.1.0` is the state of `MLP` below after `batch(0)` to `batch(2)`, under stage 3 on 8 devices.
`LOSSES` are those of the two steps that the same program took next.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import jzero

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint-0.1.0"
LOSSES = [1.2775115966796875, 1.291900634765625]


class MLP(nnx.Module):
    """Two layers, and statistics that are model state."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(8, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, use_bias=False, use_scale=False, rngs=rngs)
        self.out = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jax.nn.relu(self.norm(self.hidden(x).astype(np.float32)).astype(x.dtype)))


def loss_fn(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def batch(step):
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=(16, 8)).astype(np.float32), "y": rng.normal(size=(16, 1)).astype(np.float32)}


@pytest.mark.parametrize(("stage", "n_devices"), [(0, 8), (1, 2), (2, 4), (3, 8), (3, 1)])
def test_a_checkpoint_of_0_1_0_goes_on(stage, n_devices):
    engine = jzero.initialize(
        model=MLP,
        loss_fn=loss_fn,
        config={
            "train_batch_size": 16,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "fp16": {"enabled": True, "initial_scale_power": 8},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        },
        sample_batch=batch(0),
        mesh=jzero.make_mesh(jax.devices()[:n_devices]),
    )
    assert engine.load_checkpoint(GOLDEN) == {"next_batch": 3}
    assert int(engine.state.step) == 3
    losses = [float(engine.train_batch(batch(step))["loss"]) for step in (3, 4)]
    np.testing.assert_allclose(losses, LOSSES, rtol=1e-6 if (stage, n_devices) == (3, 8) else 2e-3)
