"""`jzero doctor --hostfile`: every host looks at itself, and what they say is laid side by side."""

import io
import json
import os
import sys
import time
import uuid
from pathlib import Path

from jzero.doctor.finding import Finding
from jzero.doctor.hosts import MARK, Report, compared
from jzero.launch.hosts.hostfile import Host, read_hostfile
from jzero.launch.hosts.variables import exported, files_of_variables
from jzero.launch.job.launching import Launching
from jzero.launch.job.plan import Job


class _Arrivals(io.StringIO):
    """Lines as they arrive, with the time."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        if text.strip():
            self.lines.append((time.time(), text))
        return len(text)


def examine_hosts(hostfile: Path) -> dict[str, list[Finding]]:
    """What is wrong with each host of a file, and between them.

    Args:
        hostfile: as for `jzero launch`.

    Returns:
        The findings of each host that has answered, and under "" those that concern several.

    Raises:
        ConfigError: the file is wrong.
        LaunchError: no host has answered.
    """
    slots = {host.name: len(host.slots or ()) for host in read_hostfile(hostfile)}
    folder = Path.cwd()
    token = folder / f".jzero-doctor-{uuid.uuid4().hex}"
    arrived = _Arrivals()
    job = Job(
        command=(sys.executable, "-m", "jzero.doctor.host_report", str(token)),
        hosts=tuple(Host(name) for name in slots),
        folder=str(folder),
        variables=exported(os.environ, (), files_of_variables(os.environ, Path.home(), folder)),
        procs_per_node=1,
        logs="",
        min_nodes=1,
        wait=60.0,
    )
    token.touch()
    try:
        Launching(job, out=arrived).run()
    finally:
        token.unlink(missing_ok=True)
    reports: dict[str, Report] = {}
    for when, line in arrived.lines:
        _, marked, text = line.partition(MARK)
        if marked:
            said = json.loads(text)
            findings = [Finding(**each) for each in said["findings"]]
            name, ahead = said["host"], said["time"] - when
            reports[name] = Report(findings, said["facts"], said["sees_token"], ahead, slots[name])
    missing = [name for name in slots if name not in reports]
    in_order = {name: reports[name] for name in slots if name in reports}
    found = {name: list(report.findings) for name, report in in_order.items()}
    return {**found, "": compared(in_order, missing, str(folder))}
