"""The scripts run from end to end in small forms, as processes of their own, and print what they promise."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks import BENCHMARKS


def run(script, *flags, ok=True):
    command = [sys.executable, str(BENCHMARKS / script), "--json", *flags]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)}  # jzero need not be installed
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode == 0) == ok, done.stderr
    return json.loads(done.stdout) if ok else done.stderr


def test_gpu_real_without_a_gpu():
    results = run("gpu_real.py", "--quick", "--programs=plain,stage 3")
    assert results["device_kind"] == "cpu"
    assert results["predicted_for"] is None
    steps = results["steps"]
    assert list(steps["programs"]) == list(steps["seconds"]) == ["plain", "stage 3"]
    assert all(len(seconds) == results["sizes"]["rounds"] for seconds in steps["seconds"].values())
    assert all(program["tokens_per_second"] > 0 == bool(program["mfu"]) for program in steps["programs"].values())
    assert steps["programs"]["plain"]["ratio_to_plain"] == 1
    for program in results["memory"].values():
        assert program["measured_peak"] is None  # CPUs do not tell
        assert program["planned_peak"] > 4 * 3 * 2 * 12 * 128**2  # blocks and two moments in fp32
    moments = 4 * 2 * 2 * 12 * 128**2
    assert results["host"]["offload"]["bytes_over_pcie"] > 2 * moments  # there and back
    assert set(results["host"]["offload"]["milliseconds"]) == {"devices", "host"}
    assert results["checkpoint"]["seconds"]["synchronous"] > 0
    for row in results["attention"].values():
        assert "runs on GPUs" in row.pop("cudnn")["refused"]
        errors = [one[what] for one in row.values() if "refused" not in one for what in ("value", "dq", "dk", "dv")]
        assert 0 < max(errors) < 2e-2  # bf16


def test_gpu_real_says_what_it_had_no_time_for():
    assert "0.001 s of --limit" in run("gpu_real.py", "--quick", "--parts=steps", "--limit=0.001", ok=False)


def test_gpu_program_of_a_model_with_constrained_weights():
    flags = ["--small", "--gpus=8", "--models=lstm", "--programs=constrained"]
    (row,) = run("gpu_program.py", *flags)["lstm"]["programs"].values()
    n_bytes = 2 * 2 * 2 * 512 * 4 * 512  # two layers of two kernels, in 16 bits
    assert row["sent_by_all-gather"] > n_bytes * 7 / 8
    assert row["unexpected_collectives"] == row["sent_by_all-to-all"] == 0
    assert row["exposed_seconds"] <= row["communication_seconds"]
    assert row["trace_seconds"] > 0
    assert row["compile_seconds"] > 0


def test_compile_time_of_both_steps():
    flags = ["--layers=1", "--d-model=128", "--gpus=2", "--rounds=1", "--forms=unrolled"]
    result = run("compile_time.py", *flags)["unrolled"]["seconds"]
    assert result["ratio"] > 0
    for name in ("stage 3", "annotated"):
        seconds = result[name]
        assert seconds["trace_and_compile"] == seconds["trace"] + seconds["compile"]


def test_offload_nvme(tmp_path):
    results = run("offload_nvme.py", "--parameters=3e6", "--rounds=2", f"--folder={tmp_path}")
    assert results["error"] == 0
    assert results["parameters"] * 12 <= results["bytes"] < results["parameters"] * 12 + 2**16
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in results["seconds"].values())
    assert not list(tmp_path.iterdir())


def test_attention():
    (found,) = [result for name, result in run("attention.py", "--tokens=64", "--rounds=1").items() if "causal" in name]
    assert found["ratio"] == found["seconds"]["blockwise"] / found["seconds"]["plain"]
    assert set(found["temporary"]) == {"plain", "blockwise"}


def test_gpu_kinds_compiles_or_says_what_was_refused():
    found = run("gpu_kinds.py", "--kinds=cuDNN, grouped queries;FFT in the compute dtype", "--settings=3")
    assert found["cuDNN, grouped queries"]["3"]["temporary"] > 2 * 2 * 8 * 64 * 512 * 2  # queries and their gradients
    assert "`jzero.keep_fp32`" in found["FFT in the compute dtype"]["3"]["refused"]


@pytest.mark.full
def test_two_level_of_a_small_model():
    flags = ["--gpus=16", "--accumulation=2", "--layers=2", "--d-model=512", "--networks=100gb-roce"]
    results = run("two_level.py", *flags)
    assert list(results) == ["flat", "two levels", "MiCS"]
    for kind in ("two levels", "MiCS"):
        assert results[kind]["to other nodes"] <= 1.05 * results[kind]["to other nodes, formula"]
        assert results[kind]["to other nodes"] < results["flat"]["to other nodes"]
        assert results[kind]["seconds, 100gb-roce"] > 0
