"""The largest micro-batch and model that fit: against trying all, and against what compiles say of the next size."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jzero import models
from jzero.errors import ConfigError
from jzero.models.scaling import scaled
from jzero.plan import Cluster, compile_step, estimate_step, largest_model, max_batch
from jzero.plan.render.largest_table import largest_view
from jzero.plan.search.largest import PRECISION, largest_fit

D, N = 256, 4
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 2},
}


def net(rngs):
    return nnx.Sequential(*(nnx.Linear(D, D, use_bias=False, rngs=rngs) for _ in range(4)))


RUN = {"model": net, "loss_fn": lambda model, batch: (jax.nn.relu(model(batch)) ** 2).mean(), "n_gpus": N}


def batch(rows):
    return jax.ShapeDtypeStruct((rows, D), jnp.float32)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """A GPU with 50 MB, so that batches are small."""
    file = tmp_path_factory.mktemp("gpu") / "small.toml"
    file.write_text('like = "h100-80g"\nmemory = 20_000_000\n')
    return str(file)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    fixed=st.integers(0, 1000),
    slopes=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    usable=st.integers(0, 100_000),
    high=st.integers(1, 3000),
)
def test_the_search_finds_what_trying_all_finds(fixed, slopes, usable, high):
    starts = [0, 100, 700]
    peak = lambda n: fixed + sum(slope * max(0, n - start) for slope, start in zip(slopes, starts, strict=False))
    asked = []
    found = largest_fit(lambda n: asked.append(n) or peak(n), usable, high)
    best = max((n for n in range(1, high + 1) if peak(n) <= usable), default=0)
    assert found <= best <= found + found // PRECISION
    assert len(asked) <= 24
    assert set(asked) <= set(range(1, high + 1))


def test_without_host_memory_nothing_that_is_offloaded_fits(gpu):
    what = {**RUN, "config": CONFIG, "sample_batch": batch(2 * N), "gpu": gpu, "stages": [2], "compiled": "nothing"}
    plain, offloaded = max_batch(**what, host_memory=0)
    assert plain.row is not None
    assert offloaded.setting.offload == "optimizer"
    assert offloaded.row is None


def test_a_micro_batch_fits_and_the_next_larger_one_does_not(gpu):
    (found,) = max_batch(**RUN, config=CONFIG, sample_batch=batch(2 * N), gpu=gpu, stages=[0], compiled="all")
    assert found.row is not None
    assert found.row.compiled
    assert found.row.fits
    micro, usable = found.setting.micro_batch, Cluster(gpu, N).usable
    larger = micro + micro // 16
    config = CONFIG | {"train_micro_batch_size_per_gpu": larger, "zero_optimization": {"stage": 0}}
    program = compile_step(**RUN, config=config, sample_batch=batch(2 * N * larger), gpu=gpu)
    assert found.row.compiled.peak <= usable < program.memory.peak


@pytest.fixture(scope="module")
def found_batches(gpu):
    return max_batch(**RUN, config=CONFIG, sample_batch=batch(2 * N), gpu=gpu, stages=[0, 1], compiled="nothing")


def test_without_a_compiler_the_closed_form_decides(found_batches, gpu):
    assert [(entry.setting.stage, entry.setting.offload) for entry in found_batches] == [
        (0, "nothing"),
        (1, "nothing"),
        (1, "optimizer"),
    ]
    for entry, stage in zip(found_batches[:2], (0, 1), strict=True):
        assert entry.setting.accumulation == 2
        peaks = []
        for n in (entry.setting.micro_batch, entry.setting.micro_batch + entry.setting.micro_batch // 32):
            config = CONFIG | {"train_micro_batch_size_per_gpu": n, "zero_optimization": {"stage": stage}}
            peaks.append(estimate_step(**RUN, config=config, sample_batch=batch(2 * N * n)).peak)
        assert peaks[0] == entry.row.peak <= Cluster(gpu, N).usable < peaks[1]
    assert found_batches[1].setting.micro_batch > found_batches[0].setting.micro_batch


MODEL = {"family": "gpt", "vocab_size": 64, "seq_len": 16, "d_model": 64, "n_layer": 2, "n_head": 4}
MODEL |= {"scan_layers": True}


@pytest.fixture(scope="module")
def found_models(gpu):
    config = CONFIG | {"gradient_accumulation_steps": 1}
    return largest_model(model=MODEL, config=config, n_gpus=N, gpu=gpu, stages=[0], compiled="nothing")


def test_a_model_fits_and_the_next_wider_one_does_not(found_models, gpu):
    (entry,) = found_models
    step = entry.model["n_head"]
    assert entry.model == scaled(MODEL, step)
    assert entry.model["d_model"] == 16 * step
    peaks = []
    for model in map(models.build, (entry.model, scaled(MODEL, step + 1))):
        config = CONFIG | {"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 0}}
        run = {"model": model.factory, "loss_fn": model.loss_fn, "sample_batch": model.batch(N, 16)}
        peaks.append(estimate_step(**run, config=config, n_gpus=N).peak)
    assert peaks[0] <= Cluster(gpu, N).usable < peaks[1]


def test_the_tables_read_at_80_columns(found_batches, found_models):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(largest_view(found_batches), largest_view(found_models))
    text = captured.get()
    for word in ("The largest micro-batch that fits", "1 opt", "The largest model that fits", "The largest is"):
        assert word in text
    assert f" {found_batches[0].setting.micro_batch:,} " in text
    assert "…" not in text


def test_what_cannot_be_searched_is_a_sentence(gpu):
    elastic = {"enabled": True, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4], "version": 0.1}
    config = {"optimizer": {"type": "AdamW"}, "elasticity": elastic}
    with pytest.raises(ConfigError, match="`elasticity` decides the micro-batch"):
        max_batch(**RUN, config=config, sample_batch=batch(8), gpu=gpu, compiled="nothing")
    with pytest.raises(ConfigError, match=r"model.family 'resnet' has no width and depth"):
        largest_model(model={"size": "resnet50"}, config=CONFIG, gpu=gpu, compiled="nothing")
