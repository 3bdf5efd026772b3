"""The same numbers as DeepSpeed: its own curves, from the same weights and data, at every stage and on other meshes."""

import jax
import numpy as np
import pytest

import jzero
from jzero.models.gpt import GPT
from jzero.models.losses import next_token_loss
from tests.parity import work as work


def train(name: str, stage: int, n_devices: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Repeats one of DeepSpeed's runs; returns jzero's curves and DeepSpeed's."""
    golden = work.golden(name)
    config = {
        **golden["config"],
        "train_micro_batch_size_per_gpu": 8 // n_devices,
        "zero_optimization": {"stage": stage},
    }
    engine = jzero.initialize(
        model=lambda rngs: GPT(work.GPT_CONFIG, rngs=rngs),
        loss_fn=next_token_loss,
        config=config,
        sample_batch={"tokens": np.zeros((work.ROWS, work.GPT_CONFIG.seq_len + 1), np.int32)},
        params=work.weights(),
        mesh=jzero.make_mesh(jax.devices()[:n_devices]),
    )
    steps = [engine.train_batch({"tokens": rows}) for rows in work.tokens()]
    ours = {key: np.array([float(m[key]) for m in steps]) for key in steps[0]}
    theirs = {key: np.array(golden[key], float) for key in ("loss", "grad_norm", "lr_used", "skipped_steps_after")}
    if golden["loss_scale_before_step"]:
        theirs["loss_scale"] = np.array(golden["loss_scale_before_step"])
    return ours, theirs


@pytest.mark.parametrize(
    ("stage", "n_devices"),
    [
        *((stage, n) for stage, n in zip((0, 1, 2, 3), (8, 2, 8, 2), strict=True)),
        *(pytest.param(stage, n, marks=pytest.mark.full) for stage, n in zip((0, 1, 2, 3), (2, 8, 2, 8), strict=True)),
    ],
)
def test_fp32_curves(stage, n_devices):
    ours, theirs = train(f"stage{stage}_fp32", stage, n_devices)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], atol=5e-6, rtol=0)
    np.testing.assert_allclose(ours["grad_norm"], theirs["grad_norm"], rtol=1e-4)
    np.testing.assert_allclose(ours["learning_rate"], theirs["lr_used"], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "stage"), [("stage1_bf16", 1), pytest.param("stage2_bf16", 2, marks=pytest.mark.full), ("stage2_bf16", 3)]
)
def test_bf16_curves(name, stage):
    ours, theirs = train(name, stage, 2)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], atol=5e-3, rtol=0)
    np.testing.assert_allclose(ours["learning_rate"], theirs["lr_used"], rtol=1e-6)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.full)])
def test_fp16_curves(stage):
    ours, theirs = train("stage2_fp16", stage, 2)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], atol=5e-4, rtol=0)
    np.testing.assert_array_equal(ours["loss_scale"], theirs["loss_scale"])


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.full), 3])
def test_fp16_run_that_overflows_skips_the_same_steps(stage):
    ours, theirs = train("stage2_fp16_overflow_hysteresis1", stage, 2)
    np.testing.assert_array_equal(ours["loss_scale"], theirs["loss_scale"])
    np.testing.assert_array_equal(ours["skipped_steps"], theirs["skipped_steps_after"])
    np.testing.assert_allclose(ours["learning_rate"], theirs["lr_used"], rtol=1e-6)
    skipped = np.isnan(theirs["grad_norm"])  # DeepSpeed's file has null where its norm was infinite
    np.testing.assert_array_equal(ours["overflow"].astype(bool), skipped)
