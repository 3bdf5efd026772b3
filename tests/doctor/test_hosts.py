"""What is found between the hosts of a job."""

import json

import pytest
from typer.testing import CliRunner

from jzero.cli import doctor_hosts
from jzero.cli.program import app
from jzero.doctor.hosts import MARK, Report, compared
from tests.launch.launched import SSH

FACTS = {"jax": "0.10.2", "JAX's backend": "gpu", "the number of devices": 8}


def wrong(reports, missing=()) -> list[str]:
    return [finding.what for finding in compared(reports, missing, "/w") if finding.level != "fine"]


def test_hosts_that_are_alike_are_fine():
    same = Report((), FACTS, True, 0.3, 8)
    assert wrong({"a": same, "b": same}) == []
    assert [finding.what for finding in compared({"a": same}, (), "/w")] == ["a answered", "all see /w"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Report((), {**FACTS, "jax": "0.12.0"}, True, 0.0), "jax is 0.10.2 on a, c and 0.12.0 on b"),
        (Report((), {**FACTS, "driver": "580"}, True, 0.0), "driver is None on a, c and 580 on b"),
        (Report((), FACTS, True, 0.0, 9), "b has 9 slots and 8 GPUs"),
        (Report((), FACTS, False, 0.0), "/w is another folder on b"),
        (Report((), FACTS, True, -61.0), "the clock of b is 61 s behind the one here"),
    ],
)
def test_what_is_odd_is_named(other, says):
    same = Report((), FACTS, True, 0.0)
    assert wrong({"a": same, "b": other, "c": same}) == [says]


def test_reports_are_read_host_by_host(tmp_path, monkeypatch):
    class Fake:
        def __init__(self, job, out):
            self.job, self.out = job, out

        def run(self) -> int:
            assert (self.job.procs_per_node, self.job.min_nodes) == (1, 1)
            finding = {"topic": "memory", "what": "little", "level": "wrong", "advice": "more"}
            report = {"host": "b", "findings": [finding], "facts": FACTS, "sees_token": True, "time": 0.0}
            print("[0] a warning of some library", file=self.out)
            print(f"[0] {MARK}{json.dumps(report)}", file=self.out)
            return 0

    monkeypatch.setattr(doctor_hosts, "Launching", Fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("a slots=8\nb slots=8\n")
    result = CliRunner().invoke(app, ["doctor", "--hostfile", "hosts", "--json"])
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)["findings"]
    assert [each["host"] for each in found] == ["b", "", "", "", ""]
    assert [each["what"] for each in found][:3] == ["little", "b answered", "a has not answered"]
    assert [file.name for file in tmp_path.iterdir()] == ["hosts"]


@pytest.mark.full
def test_hosts_behind_ssh_report(tmp_path, monkeypatch):
    (tmp_path / "hosts").write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1\n127.0.0.4 slots=1\n")
    (tmp_path / "down-127.0.0.4").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    result = CliRunner().invoke(app, ["doctor", "--hostfile", "hosts"], env={"COLUMNS": "200"})
    assert result.exit_code == 1, result.output
    assert "127.0.0.2, 127.0.0.3 answered; all see" in result.output
    assert "127.0.0.4 has not answered" in result.output
    assert "127.0.0.4 cannot be reached: ssh ended with status 255" in result.stderr
