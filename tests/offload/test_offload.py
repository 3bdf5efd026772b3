"""Training with state in host memory against training without: the same numbers, the state elsewhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero

OFFLOAD = {
    "nothing": {},
    "optimizer": {"offload_optimizer": {"device": "cpu"}},
    "optimizer and parameters": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
RUNS = {
    "fp32, two micro-batches": ({"gradient_accumulation_steps": 2}, None),
    "bf16": ({"bf16": {"enabled": True}}, None),
    "fp16, two micro-batches, one step skipped": (
        {"gradient_accumulation_steps": 2, "fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}},
        1,
    ),
}
WIDTH = 131


class Model:
    """Scanned layers, a width that nothing divides, a tied embedding, and leaves too small to be offloaded."""

    def init(self, key, batch):
        keys = iter(jax.random.split(key, 4))
        normal = lambda *shape: jax.random.normal(next(keys), shape) / np.sqrt(WIDTH)
        return {
            "wte": normal(160, WIDTH),
            "layers": {"up": normal(2, WIDTH, 256), "down": normal(2, 256, WIDTH), "bias": jnp.zeros((2, 256))},
        }


def loss_fn(params, batch):
    def layer(x, w):
        return x + jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"], None

    x = params["wte"][batch["tokens"]]
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
    logits = (x * batch["factor"][:, None, None]) @ params["wte"].T
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_probs, batch["tokens"][..., None], -1).mean()


def batches(overflowing):
    rng = np.random.default_rng(0)
    for step in range(4):
        factor = np.ones(16, np.float32)
        if step == overflowing:
            factor[3] = 6e4
        yield {"tokens": rng.integers(0, 160, (16, 9)).astype(np.int32), "factor": factor}


@functools.cache
def trained(stage, offloaded, run, n_devices=8):
    keys, overflowing = RUNS[run]
    config = {
        "train_batch_size": 16,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": 1000,
            "sub_group_size": 9000,  # pieces, and a rest
            **OFFLOAD[offloaded],
        },
        **keys,
    }
    data = list(batches(overflowing))
    mesh = jzero.make_mesh(jax.devices()[:n_devices])
    engine = jzero.initialize(model=Model(), loss_fn=loss_fn, config=config, sample_batch=data[0], mesh=mesh)
    metrics = [jax.device_get(engine.train_batch(batch)) for batch in data]
    return engine, metrics


SETTINGS = [
    (1, "optimizer", "fp16, two micro-batches, one step skipped"),
    (2, "optimizer", "fp16, two micro-batches, one step skipped"),
    (3, "optimizer", "bf16"),
    *[(3, "optimizer and parameters", run) for run in RUNS],
]


@pytest.mark.parametrize(("stage", "offloaded", "run"), SETTINGS)
def test_the_numbers_are_those_of_training_without(stage, offloaded, run):
    engine, metrics = trained(stage, offloaded, run)
    plain, expected = trained(stage, "nothing", run)
    assert metrics[0]["loss"] == expected[0]["loss"]
    # The compiler contracts products and sums otherwise in smaller pieces; 16 bits round such a difference up.
    rtol, atol = (1e-6, 2e-6) if "fp32" in run else (1e-4, 1e-4)
    for name in ("loss", "grad_norm", "overflow", "loss_scale", "skipped_steps"):
        np.testing.assert_allclose([m[name] for m in metrics], [m[name] for m in expected], rtol, err_msg=name)
    assert metrics[-1]["skipped_steps"] == ("skipped" in run)
    for got, want in zip(jax.tree.leaves(engine.state), jax.tree.leaves(plain.state), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=0, atol=atol)


@pytest.mark.parametrize(("stage", "offloaded", "run"), SETTINGS[2:4])
def test_large_parameters_and_their_moments_live_on_the_host(stage, offloaded, run):
    state = trained(stage, offloaded, run)[0].state
    kinds = {
        jax.tree_util.keystr(path): leaf.sharding.memory_kind
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    on_host = {name for name, kind in kinds.items() if kind == "pinned_host"}
    assert len(on_host) == 9
    assert all("bias" not in name for name in on_host)
    assert {name.rpartition("'")[0].rpartition("'")[2] for name in on_host} == {"wte", "up", "down"}


@pytest.mark.parametrize("offloaded", ["optimizer", "optimizer and parameters"])
def test_one_device_fetches_and_evaluates_too(offloaded):
    engine, metrics = trained(3, offloaded, "bf16", n_devices=1)
    _, expected = trained(3, "nothing", "bf16", n_devices=1)
    np.testing.assert_allclose([m["loss"] for m in metrics], [m["loss"] for m in expected], rtol=1e-4)
    batch = next(batches(None))
    assert np.isfinite(engine.eval_batch(batch)["loss"])


def test_a_checkpoint_goes_from_the_host_to_the_devices_and_back(tmp_path):
    offloaded, _ = trained(3, "optimizer and parameters", "bf16")
    plain, _ = trained(3, "nothing", "bf16")
    batch = next(batches(None))
    before = jax.device_get(offloaded.train_batch(batch)["loss"])
    offloaded.save_checkpoint(tmp_path / "offloaded")
    plain.load_checkpoint(tmp_path / "offloaded")
    plain.save_checkpoint(tmp_path / "plain")
    expected = [jax.device_get(plain.train_batch(batch)["loss"]) for _ in range(2)]
    offloaded.load_checkpoint(tmp_path / "plain")
    np.testing.assert_allclose(
        [jax.device_get(offloaded.train_batch(batch)["loss"]) for _ in range(2)], expected, rtol=1e-4
    )
    assert expected[0] < before
    assert offloaded.state.params["wte"].sharding.memory_kind == "pinned_host"
