"""What `this_machine` reads, and the command that shows it."""

import json

from typer.testing import CliRunner

from jzero.cli.program import app
from jzero.doctor import machine, this_machine


def test_the_facts_of_this_machine(monkeypatch):
    several = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in several.items():
        monkeypatch.setenv(name, value)
    facts = this_machine()
    assert (facts.backend, len(facts.devices)) == ("cpu", 8)
    assert {"jzero", "jax", "jaxlib"} <= set(facts.versions)
    assert facts.cpus >= 1
    assert facts.addresses is not None
    assert set(facts.addresses) & {"127.0.0.1", "::1"}


def test_files_of_the_kernel_are_read(tmp_path):
    files = {
        "driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
        "net/eth0/operstate": "up",
        "net/eth0/speed": "100000",
        "net/eth1/operstate": "down",
        "net/wl0/operstate": "up",
        "net/wl0/speed": "-1",
        "ib/mlx5_0/ports/1/state": "4: ACTIVE",
        "ib/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert machine._driver(tmp_path / "driver") == "550.54.15"
    assert machine._driver(tmp_path / "nothing") is None
    assert machine._interfaces(tmp_path / "net") == {"eth0": 100_000, "wl0": None}
    assert machine._fabric(tmp_path / "ib") == {"mlx5_0/1": ("4: ACTIVE", "400 Gb/sec (4X NDR)")}


def test_the_command_shows_it_and_fails_where_something_is_wrong(monkeypatch):
    monkeypatch.delenv("JAX_DISABLE_JIT", raising=False)
    fine = CliRunner().invoke(app, ["doctor"])
    assert fine.exit_code == 0, fine.output
    assert "Nothing is wrong" in fine.stdout
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "3")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["wrong"] == 1
    assert [f["advice"] for f in found["findings"] if f["level"] == "wrong"] == [
        "The environment has RANK=3 and WORLD_SIZE=2; ranks count from 0."
    ]


def test_settings_are_shown_with_what_is_set_now(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_nccl_termination_timeout_seconds=7")
    shown = CliRunner().invoke(app, ["doctor", "--settings"])
    assert shown.exit_code == 0
    assert "xla_gpu_nccl_termination_timeout_seconds: 1800  now 7" in shown.stdout
    rows = json.loads(CliRunner().invoke(app, ["doctor", "--settings", "--json"]).stdout)["settings"]
    assert {row["by"] for row in rows} == {"jzero", "you", "leave"}
    assert [row["present"] for row in rows if row["name"] == "xla_gpu_nccl_termination_timeout_seconds"] == ["7"]
