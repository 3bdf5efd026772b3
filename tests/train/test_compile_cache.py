"""Which folder holds a run's compiled programs, and when there is none."""

import logging
from pathlib import Path

import jax
import pytest

import jzero
from jzero.config import Config
from jzero.errors import ConfigError
from jzero.jaxpr.compilations import keep_compiled_in
from jzero.plan import gpu_mesh
from jzero.train.compile_cache import use_compile_cache


@pytest.fixture(autouse=True)
def without_cache():
    yield
    keep_compiled_in(None)


def chosen(mesh, folder, *, setting=None, device="none"):
    config = {
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": device}},
        "jzero": {} if setting is None else {"compile_cache": setting},
    }
    use_compile_cache(Config.load(config).resolve(world=8), Path(folder), mesh)
    return jax.config.jax_compilation_cache_dir


def test_gpus_keep_theirs_under_the_output_folder(tmp_path):
    mesh = gpu_mesh(n_gpus=8)
    assert chosen(mesh, tmp_path) == str(tmp_path / "compile_cache")
    assert chosen(mesh, "elsewhere") == str(tmp_path / "compile_cache")  # JAX has one already


def test_false_is_none(tmp_path):
    assert chosen(gpu_mesh(n_gpus=8), tmp_path, setting=False) is None


def test_cpus_keep_theirs_if_asked(tmp_path, caplog):
    caplog.set_level(logging.INFO, "jzero")
    mesh = jzero.make_mesh()
    assert chosen(mesh, tmp_path) is None
    assert chosen(mesh, tmp_path, setting=str(tmp_path / "programs"), device="cpu") is None
    assert "programs for CPUs with offloading cannot be kept" in caplog.text
    assert chosen(mesh, tmp_path, setting=str(tmp_path / "programs")) == str(tmp_path / "programs")
    assert f"compiled programs are kept in {tmp_path / 'programs'}" in caplog.text


@pytest.mark.parametrize("value", [True, 1, []])
def test_anything_else_is_refused(value):
    with pytest.raises(ConfigError, match=r"jzero\.compile_cache.* must be a string or false"):
        Config.load({"train_batch_size": 8, "jzero": {"compile_cache": value}})
