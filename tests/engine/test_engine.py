"""The engine: what it reports, what each device holds, and that the mesh changes nothing but where things lie."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.errors import BatchError, ConfigError, ModelError
from tests.helpers import assert_equal_runs, batches, build, host, mesh_of, restart, squared_error, train, train_alone

STEPS = batches(3, 48)
ADAM = optax.adam(0.01)
ENGINES = {"optimizer": ADAM}


@pytest.fixture(scope="module")
def alone():
    return train_alone(STEPS, host(build(0, STEPS[0], n_devices=1).params), ADAM)


@pytest.mark.parametrize(
    ("n_devices", "replica", "stage"),
    [(1, 1, 3), (2, 1, 1), (3, 1, 3), (6, 1, 2), (8, 1, 0), (8, 2, 1), (8, 2, 2), (8, 2, 3), (6, 3, 3)],
)
def test_every_mesh_trains_as_one_device_does(alone, n_devices, replica, stage):
    engine = build(stage, STEPS[0], n_devices=n_devices, replica=replica, **ENGINES)
    assert engine.mesh.size == n_devices
    assert_equal_runs(train(engine, STEPS), alone, rtol=1e-4, atol=1e-5)


def test_each_device_holds_its_share_of_master_and_moments():
    engine = build(3, STEPS[0])
    n_params = sum(x.size for x in jax.tree.leaves(engine.params))
    placements = jax.tree.leaves(engine.placements, is_leaf=lambda x: hasattr(x, "padded_shape"))
    whole = sum(int(np.prod(p.shape)) for p in placements if p.dim is None)
    assert 0 < whole < 200
    expected = 12 * (n_params - whole) / 8 + 12 * whole
    for device in jax.devices():
        live = [
            s.data.nbytes for x in jax.tree.leaves(engine.state) for s in x.addressable_shards if s.device == device
        ]
        assert sum(live) == pytest.approx(expected, rel=0.07)  # this model is so small that its padding shows
    exact = sum(int(np.prod(p.shard_shape)) * 12 for p in placements)
    assert sum(live) == pytest.approx(exact, rel=0.01)


def test_bytes_of_state_are_within_a_percent_of_the_paper_s():
    """A model of 130 thousand parameters that all divide."""

    class Wide(nnx.Module):
        def __init__(self, rngs):
            self.up, self.down = nnx.Linear(128, 512, rngs=rngs), nnx.Linear(512, 128, rngs=rngs)

        def __call__(self, x):
            return self.down(jnp.tanh(self.up(x)))

    batch = batches(1, 8, 128, 128)[0]
    for stage in (1, 2, 3):
        engine = build(stage, batch, model=Wide)
        n_params = sum(x.size for x in jax.tree.leaves(engine.params))
        live = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(engine.state))
        whole = 0 if stage == 3 else 512 + 128  # the biases
        assert live == pytest.approx(12 * ((n_params - whole) / 8 + whole), rel=0.01)
        engine.train_batch(batch)
        assert live == sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(engine.state))


@pytest.fixture(scope="module")
def scheduled():
    sections = {
        "gradient_clipping": 0.01,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"},
        },
    }
    return build(2, STEPS[0], sections=sections)


def test_metrics_are_those_of_the_step_itself(scheduled):
    engine = restart(scheduled)
    before = host(engine.params)
    alone = train_alone(STEPS[:1], before, optax.sgd(0.0))
    metrics = engine.train_batch(STEPS[0])
    assert metrics.keys() == {
        "loss",
        "grad_norm",
        "learning_rate",
        "loss_scale",
        "overflow",
        "nonfinite_leaf",
        "nonfinite_micro_batch",
        "skipped_steps",
        "skipped_in_a_row",
        "skipped_share",
        "applied_steps",
    }
    assert all(x.shape == () for x in metrics.values())
    assert float(metrics["loss"]) == pytest.approx(alone.losses[0], rel=1e-5)
    assert float(metrics["grad_norm"]) == pytest.approx(alone.norms[0], rel=1e-5)
    assert alone.norms[0] > 0.1  # far above the clipping threshold
    rates = [float(metrics["learning_rate"])] + [float(engine.train_batch(b)["learning_rate"]) for b in STEPS[1:]]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] <= 0.5
    assert not bool(metrics["overflow"])
    assert (int(metrics["skipped_steps"]), int(metrics["applied_steps"])) == (0, 1)


def test_clipping_bounds_the_update_by_the_learning_rate_of_this_step(scheduled):
    engine = restart(scheduled)
    for batch in STEPS:
        before = host(engine.params)
        rate = float(engine.train_batch(batch)["learning_rate"])
        moved = optax.tree.norm(jax.tree.map(lambda a, b: jnp.asarray(a - b), host(engine.params), before))
        assert float(moved) == pytest.approx(rate * 0.01, rel=1e-2, abs=1e-9)


def test_an_optimizer_with_its_own_schedule_reports_no_rate_unless_told():
    assert "learning_rate" not in build(1, STEPS[0], **ENGINES).train_batch(STEPS[0])
    told = build(1, STEPS[0], **ENGINES, schedule=lambda step: 0.25 / (step + 1))
    assert [float(told.train_batch(b)["learning_rate"]) for b in STEPS[:2]] == [0.25, 0.125]


def test_what_the_loss_returns_is_reported_averaged_over_the_batch():
    def loss(model, batch):
        return squared_error(model, batch), {"rows": batch["x"][:, 0].mean(), "n": jnp.asarray(3, jnp.int32)}

    engine = build(3, STEPS[0], loss_fn=loss, accumulation=2)
    for metrics in (engine.train_batch(STEPS[0]), engine.eval_batch(STEPS[0])):
        assert float(metrics["rows"]) == pytest.approx(STEPS[0]["x"][:, 0].mean(), abs=1e-6)
        assert float(metrics["n"]) == 3


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {**STEPS[0], "x": STEPS[0]["x"][:40]},
            r"batch leaf x has shape \(40, 129\); expected \(48, 129\): train_batch_size 48, as in the sample",
        ),
        ({**STEPS[0], "y": STEPS[0]["y"][:, :3]}, r"batch leaf y has shape \(48, 3\); expected \(48, 8\)"),
        ({"x": STEPS[0]["x"]}, "batch lacks y; its leaves must be those of the sample"),
        ({**STEPS[0], "t": 3.0}, "batch has t as well"),
        (STEPS[0]["x"], r"batch lacks x, y and has \(the batch itself\) as well"),
        ({**STEPS[0], "y": list(STEPS[0]["y"])}, r"batch lacks y and has y\.0, y\.1, .*, … as well"),
        ({**STEPS[0], "x": STEPS[0]["x"] > 0}, "batch leaf x is bool; the sample had float32"),
        ({**STEPS[0], "x": STEPS[0]["x"].astype(np.int64)}, "batch leaf x is int64; the sample had float32"),
        ({**STEPS[0], "x": STEPS[0]["x"].astype(str)}, "batch leaf x holds <U32, which is no number"),
        (
            {**STEPS[0], "x": STEPS[0]["x"].astype(np.float64) * 1e300},
            "which is infinite in float32",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_a_sentence(scheduled, batch, message):
    with pytest.raises(BatchError, match=message):
        scheduled.train_batch(batch)


def weighted(model, batch):
    errors = ((model(batch["x"]) - batch["y"]) ** 2).mean(-1)
    weight = jnp.abs(batch["x"][:, 0])
    return jzero.Mean((errors * weight).sum(), weight.sum()), {"plain": jzero.Mean(errors.mean())}


@pytest.fixture(scope="module")
def weighted_on():
    """The same parameters on eight devices at stage 3, and on one."""
    many = build(3, STEPS[0], loss_fn=weighted)
    return many, build(0, STEPS[0], loss_fn=weighted, params=host(many.params), n_devices=1)


@pytest.mark.parametrize("rows", [16, 13, 1])
def test_evaluation_takes_any_number_of_rows(weighted_on, rows):
    many, one = (engine.eval_batch(batches(1, rows)[0]) for engine in weighted_on)
    assert {name: float(value) for name, value in many.items()} == pytest.approx(
        {name: float(value) for name, value in one.items()}, rel=1e-5
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: jax.tree.map(lambda x: x[:0], b), r"leaf x has shape \(0, 129\); it needs one row or more"),
        (lambda b: {**b, "y": b["y"][:8]}, "leaf y has 8 rows, but x has 48"),
        (lambda b: {**b, "y": b["y"][:, 0]}, r"leaf y has shape \(48,\); in the sample it had 2 dimensions"),
        (lambda b: {"x": b["x"]}, "eval_batch lacks y"),
        (lambda b: {**b, "x": b["x"].astype(np.int32)}, "eval_batch leaf x is int32; the sample had float32"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence(scheduled, change, message):
    with pytest.raises(BatchError, match=message):
        scheduled.eval_batch(change(STEPS[0]))


def test_whole_numbers_that_32_bits_cannot_hold_are_refused():
    def loss(model, batch):
        return (model(batch["x"]) ** 2).mean() * 0 + batch["id"].astype(jnp.float32).mean()

    sample = {"x": np.ones((8, 4), np.float32), "id": np.arange(8, dtype=np.int64)}
    wide = {**sample, "id": sample["id"] + 2**31}
    make = lambda sample: jzero.initialize(
        model=lambda rngs: nnx.Linear(4, 4, rngs=rngs),
        loss_fn=loss,
        config={"train_batch_size": 8, "optimizer": {"type": "AdamW"}},
        sample_batch=sample,
    )
    engine = make(sample)
    for part in (np.int64, np.int32, np.uint16):  # what 32 bits hold is the same number
        assert float(engine.train_batch({**sample, "id": sample["id"].astype(part)})["loss"]) == 3.5
    for take in (engine.train_batch, engine.eval_batch, make):
        with pytest.raises(BatchError, match=r"leaf id holds 2147483648, which int32 cannot hold"):
            take(wide)


def test_given_parameters_start_the_run_whatever_their_dtype_and_the_type_of_their_keys():
    reference = build(0, STEPS[0])
    given = jax.tree.map(lambda x: np.round(np.asarray(x) * 4).astype(np.float64), reference.params)
    given["gain"] = 2
    for stage in (0, 3):
        engine = build(stage, STEPS[0], params=given)
        assert {x.dtype for x in jax.tree.leaves(engine.params)} == {jnp.dtype("float32")}
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), y), engine.params, given)
        assert np.isfinite(float(engine.train_batch(STEPS[0])["loss"]))


def test_parameters_of_another_model_are_a_sentence():
    params = host(build(0, STEPS[0]).params)
    params["second"] = {"kernel": np.ones((131, 9), np.float32), "scale": np.ones(1, np.float32)}
    message = (
        r"params do not fit the model in 3 leaves: second.bias: missing, expected \(8,\); "
        r"second.kernel: \(131, 9\), expected \(131, 8\); second.scale: \(1,\), expected no such parameter"
    )
    with pytest.raises(ModelError, match=message):
        build(3, STEPS[0], params=params)


def test_batch_sizes_that_do_not_fit_the_mesh_are_a_sentence():
    with pytest.raises(
        ConfigError, match=r"do not fit 8 data shards.*the nearest `train_batch_size` that fits is 8 or"
    ):
        build(1, batches(1, 12)[0])


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_a_sentence(seed):
    with pytest.raises(ConfigError, match=rf"seed is {seed}; it must be at least 0 and below 2\*\*32"):
        build(0, batches(1, 8)[0], seed=seed)


def test_two_engines_live_side_by_side(alone):
    first, second = build(3, STEPS[0], **ENGINES), build(1, STEPS[0], n_devices=2, **ENGINES)
    losses = [(float(first.train_batch(b)["loss"]), float(second.train_batch(b)["loss"])) for b in STEPS]
    np.testing.assert_allclose(losses, np.array([alone.losses] * 2).T, rtol=1e-4)


def test_parameters_held_across_a_step_are_gone_or_right_but_never_wrong(scheduled):
    engine = restart(scheduled)
    held, copied = engine.params, host(engine.params)
    engine.train_batch(STEPS[0])
    for x, was in zip(jax.tree.leaves(held), jax.tree.leaves(copied), strict=True):
        if not x.is_deleted():
            np.testing.assert_array_equal(np.asarray(x), was)
    assert all(not x.is_deleted() for x in jax.tree.leaves(engine.params))


def test_the_engine_says_how_it_is_set_up(scheduled):
    assert scheduled.stage_plan.stage == 2
    assert scheduled.config.train_micro_batch_size_per_gpu == 6
    assert scheduled.mesh == mesh_of(8)
    assert scheduled.placements["first"]["kernel"].padding
    assert scheduled.params["first"]["kernel"].shape == (129, 131)
