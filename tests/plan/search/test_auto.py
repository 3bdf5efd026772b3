"""A stage and a micro-batch of "auto": what is chosen for the devices at hand, and what training makes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jzero
from jzero.config import Config, TrainingArguments
from jzero.errors import ConfigError
from jzero.plan.estimate.step import estimate_step
from jzero.plan.search import auto

D, ROWS = 1024, 8192
STAGE = "zero_optimization.stage"


def net(rngs):
    return nnx.Sequential(*(nnx.Linear(D, D, use_bias=False, rngs=rngs) for _ in range(2)))


def loss_fn(model, batch):
    return (jax.nn.relu(model(batch)) ** 2).mean()


RUN = {"model": net, "loss_fn": loss_fn, "sample_batch": jax.ShapeDtypeStruct((ROWS, D), jnp.float32)}
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-2}}
OPEN = {"train_batch_size": ROWS, "optimizer": OPTIMIZER, "zero_optimization": {"stage": "auto"}}


def peak(stage, micro=ROWS // 8, **sections):
    """What a setting takes by the closed form, with its error: as much as a device must have."""
    config = {"train_batch_size": ROWS, "train_micro_batch_size_per_gpu": micro, "optimizer": OPTIMIZER, **sections}
    return 1.15 * estimate_step(**RUN, config=config | {"zero_optimization": {"stage": stage}}).peak + 2


def chosen(monkeypatch, memory, config, arguments=None):
    """The configuration as settled for eight devices of this much memory."""
    monkeypatch.setattr(auto, "_available", lambda _: memory and int(memory))
    return auto.resolve_auto(Config.load(config), mesh=None, training_arguments=arguments, **RUN)


def test_less_memory_takes_a_higher_stage(monkeypatch):
    needs = {stage: peak(stage) for stage in range(4)}
    assert needs[3] <= needs[2] <= needs[1] < needs[0]
    stages = []
    for memory in (needs[0] - 10, needs[1], needs[3]):
        resolve_auto = chosen(monkeypatch, memory, OPEN)
        stage = resolve_auto.zero_optimization.stage
        assert needs[stage] <= memory
        assert resolve_auto.origins[STAGE] == "auto from the plan"
        assert resolve_auto.notes[0].startswith(
            f'`{STAGE}` = "auto" became stage {stage}: by the closed form it takes '
        )
        stages.append(stage)
    assert 0 not in stages


def test_where_nothing_fits_it_says_what_would(monkeypatch):
    config = {**OPEN, "train_batch_size": 8}
    monkeypatch.setattr(auto, "_available", lambda _: 11_000_000)
    says = r'"auto": nothing fits: even stage \d takes .* too much. About \d+ such GPUs would hold stage \d'
    with pytest.raises(ConfigError, match=says):
        auto.resolve_auto(
            Config.load(config), mesh=None, **{**RUN, "sample_batch": jax.ShapeDtypeStruct((8, D), jnp.float32)}
        )


def test_what_is_offloaded_stays_offloaded(monkeypatch):
    config = {**OPEN, "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "cpu"}}}
    resolve_auto = chosen(monkeypatch, 1e9, config).zero_optimization
    assert resolve_auto.stage > 0
    assert resolve_auto.offloads_optimizer


MICRO = {"optimizer": OPTIMIZER, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}}


def sizes(config):
    return config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps


def test_the_micro_batch_shrinks_until_it_fits_and_the_batch_stays(monkeypatch):
    assert sizes(chosen(monkeypatch, 1e9, MICRO)) == (ROWS, 1024, 1)  # the sample says how large the batch is
    needs = {micro: peak(1, micro) for micro in (256, 512, 1024)}
    assert needs[256] < needs[512] < needs[1024]
    resolve_auto = chosen(monkeypatch, needs[256], {**MICRO, "train_batch_size": ROWS})
    assert sizes(resolve_auto) == (ROWS, 256, 4)
    assert "became stage 1, 256 a GPU x 4 micro-batches" in resolve_auto.notes[0]


@pytest.mark.parametrize(
    ("config", "arguments", "micro"),
    [
        ({"train_batch_size": 32}, TrainingArguments(), 4),  # nobody chose 8
        ({"train_batch_size": 32}, TrainingArguments(per_device_train_batch_size=2), "auto"),
        ({"train_batch_size": 32}, TrainingArguments(gradient_accumulation_steps=2), "auto"),
        ({"train_batch_size": "auto"}, TrainingArguments(), "auto"),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 2}, None, "auto"),
        ({"train_batch_size": 32, "gradient_accumulation_steps": "auto"}, TrainingArguments(), "auto"),
    ],
)
def test_what_training_arguments_or_other_sizes_decide_is_left_to_them(monkeypatch, config, arguments, micro):
    sample = jax.ShapeDtypeStruct((32, D), jnp.float32)
    monkeypatch.setattr(auto, "_available", lambda _: 10**9)
    resolve_auto = auto.resolve_auto(
        Config.load({**MICRO, **config}), mesh=None, training_arguments=arguments, **{**RUN, "sample_batch": sample}
    )
    assert resolve_auto.train_micro_batch_size_per_gpu == micro


def test_training_is_as_with_the_numbers_given():
    batch = np.random.default_rng(0).standard_normal((64, D)).astype(np.float32)
    run = {**RUN, "sample_batch": batch}
    engine = jzero.initialize(**run, config={**MICRO, "zero_optimization": {"stage": "auto"}})
    stage, (total, micro, accumulation) = engine.stage_plan.stage, sizes(engine.config)
    assert total == 64 == micro * accumulation * 8
    assert any(f"became stage {stage}" in note for note in engine.config.notes)
    numbers = {"train_batch_size": total, "train_micro_batch_size_per_gpu": micro, "optimizer": OPTIMIZER}
    given = jzero.initialize(**run, config={**numbers, "zero_optimization": {"stage": stage}})
    assert float(engine.train_batch(batch)["loss"]) == float(given.train_batch(batch)["loss"])


@pytest.mark.parametrize(
    ("change", "memory", "says"),
    [
        ({}, None, "it is not known how much memory the devices have"),
        (
            {
                "train_micro_batch_size_per_gpu": "auto",
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "x"}},
            },
            1e9,
            "cannot be planned with the optimizer on NVMe; give a number",
        ),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(monkeypatch, change, memory, says):
    with pytest.raises(ConfigError, match=says):
        chosen(monkeypatch, memory, {**OPEN, **change})


def test_a_mesh_that_the_closed_form_does_not_know_is_refused():
    mesh = jzero.make_mesh(jax.devices()[:8], replica=2)
    with pytest.raises(ConfigError, match=r"is for a mesh with all devices on `shard`, not {'replica': 2, 'shard': 4"):
        jzero.initialize(**RUN, config=OPEN, mesh=mesh)


def test_an_open_stage_needs_someone_who_chooses_it():
    config = Config.load(OPEN)
    with pytest.raises(ConfigError, match=f"`{STAGE}` .needs the model and the devices: jzero.initialize"):
        config.resolve(world=8)
    assert config.resolve(world=8, partly=True).zero_optimization.stage == "auto"


def test_memory_here_is_the_share_of_each_simulated_device():
    free = auto._available(jax.devices()[:1])
    assert free is not None
    assert auto._available(jax.devices()[:8]) == pytest.approx(free / 8, rel=0.5)
