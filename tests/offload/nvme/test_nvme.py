"""Training with the optimizer on NVMe: the same numbers, a state that survives, and sentences for what cannot be."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import jzero
from jzero.errors import ConfigError, JzeroError, OffloadError
from jzero.offload.nvme.disk import Disk
from tests.offload.nvme.case import batches, keep_compiled, make_engine
from tests.offload.test_offload import OFFLOAD, trained

ROOT = Path(__file__).parents[3]


def close(got, want, atol=2e-6):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-6, atol=atol, err_msg=str(path))


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Keeps compiled programs, for most engines here run the same ones."""
    folder = tmp_path_factory.mktemp("compiled")
    keep_compiled(folder)
    yield folder
    keep_compiled(None)


@pytest.fixture(scope="module")
def in_memory():
    """Four steps of an engine in memory: the losses, and its state after each."""
    engine, losses, states = make_engine(), [], []
    for batch in batches(4):
        losses.append(float(engine.train_batch(batch)["loss"]))
        states.append(jax.device_get(engine.state))
    return losses, states


@pytest.fixture(scope="module")
def sixteen_bits_in_memory():
    """Four steps in bf16, compiled as the others of this file: not those that another file may have cached."""
    return trained.__wrapped__(3, "nothing", "bf16")


@pytest.mark.parametrize("params", ["none", "nvme"])
def test_the_numbers_are_those_of_training_in_memory(tmp_path, in_memory, params):
    losses, states = in_memory
    engine = make_engine(tmp_path, params=params)
    assert [float(engine.train_batch(batch)["loss"]) for batch in batches(4)] == pytest.approx(losses, rel=1e-6)
    close(engine.params, states[3].params)


@pytest.mark.parametrize("params", ["none", "cpu"])
def test_sixteen_bits_are_all_that_lasts_of_large_parameters_outside_of_files(tmp_path, params, sixteen_bits_in_memory):
    optimizer = {"device": "nvme", "nvme_path": str(tmp_path)}
    OFFLOAD["nvme"] = {"offload_optimizer": optimizer, "offload_param": {"device": params}}
    engine, metrics = trained.__wrapped__(3, "nvme", "bf16")
    plain, expected = sixteen_bits_in_memory
    # The last bit of an update turns some of 16 bits up or down, from the third step on.
    for name, rtol in (("loss", 2e-3), ("grad_norm", 2e-3), ("learning_rate", 1e-6)):
        np.testing.assert_allclose([m[name] for m in metrics], [m[name] for m in expected], rtol, err_msg=name)
    assert metrics[1]["loss"] == expected[1]["loss"]
    close(engine.params, plain.params, 1e-2)
    large = [x for x in jax.tree.leaves(engine.state.params) if x.size > 512]
    memory = "device" if params == "none" else "pinned_host"
    assert {(x.dtype.name, x.sharding.memory_kind) for x in large} == {("bfloat16", memory)}
    assert sum(x.size for x in jax.tree.leaves(engine.state.opt_state)) == 2 * 512 + 2  # of the biases, and counts


class Waves:
    """One large complex parameter and nothing else."""

    def init(self, key, batch):
        return {"w": jax.random.normal(key, (40, 640), "complex64") / 10}

    def loss(self, params, batch):
        return (jax.numpy.abs(batch["x"].astype("complex64") @ params["w"]) ** 2).mean()


@pytest.mark.parametrize("params", ["none", "cpu"])
def test_complex_gradients_are_whole_and_no_gradient_need_stay_on_the_devices(tmp_path, params):
    what = {"model": Waves(), "loss": Waves().loss}
    plain, nvme_state = make_engine(**what), make_engine(tmp_path, params=params, **what)
    for batch in batches(2):
        losses = [float(engine.train_batch(batch)["loss"]) for engine in (plain, nvme_state)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    close(nvme_state.params, plain.params)


def test_where_all_that_is_large_is_frozen_nothing_is_in_files(tmp_path):
    what = {"trainable": lambda name: name == "bias"}
    plain, nvme_state = make_engine(**what), make_engine(tmp_path, params="cpu", **what)
    for batch in batches(2):
        losses = [float(engine.train_batch(batch)["loss"]) for engine in (plain, nvme_state)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert nvme_state.state.params["up"].sharding.memory_kind == "pinned_host"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("params", ["none", "cpu"])
def test_checkpoints_go_from_files_to_memory_and_back(tmp_path, in_memory, params):
    losses, states = in_memory
    (tmp_path / "nvme").mkdir()
    nvme_state, plain = make_engine(tmp_path / "nvme", params=params), make_engine(seed=1)
    first, second, third, fourth = batches(4)
    nvme_state.train_batch(first)
    nvme_state.save_checkpoint(tmp_path / "one", extra={"position": 1})
    assert plain.load_checkpoint(tmp_path / "one") == {"position": 1}
    assert float(plain.train_batch(second)["loss"]) == pytest.approx(losses[1], rel=1e-6)
    plain.save_checkpoint(tmp_path / "two")
    nvme_state.load_checkpoint(tmp_path / "two")
    assert float(nvme_state.eval_batch(third)["loss"]) == pytest.approx(losses[2], rel=1e-6)
    close(nvme_state.params, states[1].params)
    assert float(nvme_state.train_batch(third)["loss"]) == pytest.approx(losses[2], rel=1e-6)
    assert float(nvme_state.train_batch(fourth)["loss"]) == pytest.approx(losses[3], rel=1e-6)


def test_a_killed_run_goes_on_from_before_or_after_its_step(tmp_path, in_memory, compiled):
    losses, states = in_memory
    (tmp_path / "nvme").mkdir()
    worker = [sys.executable, "-m", "tests.offload.nvme.worker", str(tmp_path / "nvme"), str(compiled)]
    worker += ["write", "commit", "committed"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(worker, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["write found 0", "commit found 2", "committed found 2"]
    engine = make_engine(tmp_path / "nvme", seed=1)
    assert engine.recover() == 3
    close(engine.params, states[2].params)
    assert float(engine.train_batch(batches(4)[3])["loss"]) == pytest.approx(losses[3], rel=1e-6)


def test_a_disk_that_fails_leaves_the_state_before_the_step(tmp_path, in_memory, monkeypatch):
    losses, states = in_memory
    engine = make_engine(tmp_path)
    data = batches(4)
    engine.train_batch(data[0])
    pwritev, calls = os.pwritev, []

    def failing(*args):
        calls.append(args)
        if len(calls) > 20:
            raise OSError(5, os.strerror(5))
        return pwritev(*args)

    monkeypatch.setattr(os, "pwritev", failing)
    with pytest.raises(OffloadError, match=r"generation-[01] could not be written: Input/output error\.$"):
        engine.train_batch(data[1])
    monkeypatch.undo()
    assert float(engine.train_batch(data[1])["loss"]) == pytest.approx(losses[1], rel=1e-6)
    close(engine.params, states[1].params)


def test_buffers_and_requests_are_as_many_and_as_large_as_the_file_says(tmp_path, monkeypatch):
    aio = {"block_size": 8000, "queue_depth": 2, "intra_op_parallelism": 2}  # 8192 bytes, four at once
    engine = make_engine(tmp_path, config={"aio": aio}, offload={"buffer_count": 2})
    preadv, read, write = os.preadv, Disk.read, Disk.write
    together, both_read, sizes, under_way, groups = threading.Barrier(4), threading.Event(), [], [], []

    def preadv_together(handle, buffers, offset):
        under_way.append(1)
        if len(sizes) < 4:
            sizes.append(len(buffers[0]))
            together.wait(timeout=60)
        assert len(under_way) <= 4
        under_way.pop()
        sizes.append(len(buffers[0]))
        return preadv(handle, buffers, offset)

    def noted_read(*arguments):
        groups.append("read")
        read(*arguments)
        if len(groups) == 2:
            both_read.set()

    def late_write(*arguments):
        assert both_read.wait(timeout=60)
        if "write" not in groups:
            time.sleep(0.05)  # a third buffer would be read into now
            assert groups == ["read", "read"]
        groups.append("write")
        write(*arguments)

    monkeypatch.setattr(os, "preadv", preadv_together)
    monkeypatch.setattr(Disk, "read", noted_read)
    monkeypatch.setattr(Disk, "write", late_write)
    engine.train_batch(batches(1)[0])
    assert max(sizes) == 8192
    assert groups.count("write") == groups.count("read") > 4


def test_a_skipped_step_touches_no_file(tmp_path, in_memory):
    engine = make_engine(tmp_path, config={"fp16": {"enabled": True, "hysteresis": 1}})
    batch = batches(1)[0]
    files = sorted(tmp_path.glob("jzero/process-0/*"))
    before = [file.stat().st_mtime_ns for file in files]
    metrics = engine.train_batch({**batch, "x": batch["x"] * 1e4})
    assert metrics["overflow"]
    assert sorted(tmp_path.glob("jzero/process-0/*")) == files
    assert [file.stat().st_mtime_ns for file in files] == before
    with pytest.raises(OffloadError, match="holds no state of an earlier run of this model on these devices; load a"):
        engine.recover()
    assert float(engine.train_batch(batch)["loss"]) == pytest.approx(in_memory[0][0], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"optimizer": optax.lamb(1e-3)}, "update of down needs the whole parameter, and with .*device to cpu"),
        (
            {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))},
            "update of down reads up, so parameters cannot pass",
        ),
    ],
)
def test_an_update_that_cannot_be_cut_is_refused(arguments, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        make_engine(tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("zero", "sentence"),
    [
        ({"stage": 2}, "device` = 'nvme' is refused: it is for stage 3"),
        ({"nvme_path": None}, "nvme_path` is missing"),
        ({"ratio": 0.5}, "ratio` = 0.5 is refused with `device` = 'nvme'"),
    ],
)
def test_combinations_that_are_not_there_are_refused(zero, sentence):
    section = {"device": "nvme", "nvme_path": "/nvme", **{k: zero[k] for k in ("nvme_path", "ratio") if k in zero}}
    others = {k: v for k, v in zero.items() if k not in section}
    with pytest.raises(ConfigError, match=sentence):
        jzero.Config.load({"zero_optimization": {"stage": 3, "offload_optimizer": section, **others}})


def test_a_disk_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(JzeroError, match=r"nvme_path: .*/missing is not there, or no folder; name one on a disk"):
        make_engine(tmp_path / "missing")
