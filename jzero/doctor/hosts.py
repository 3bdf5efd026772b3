"""What does not fit together among the hosts of a job: a pure function of what each has reported."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jzero.base.types import Json
from jzero.doctor.finding import Finding

MARK = "jzero doctor: "
"""How the line begins that a host reports on."""

N_DEVICES = "the number of devices"
"""The name of a fact."""

MOST_SECONDS = 2.0
"""Clocks that are further apart confuse files' ages, and logs."""


@dataclass(frozen=True)
class Report:
    """What one host has said.

    Attributes:
        findings: what `jzero doctor` finds there.
        facts: what should be the same everywhere, by name.
        sees_token: whether a file that was just written here is there.
        seconds: how far its clock is ahead of the one here.
        slots: how many GPUs the hostfile gives it.
    """

    findings: Sequence[Finding]
    facts: Mapping[str, Json]
    sees_token: bool
    seconds: float
    slots: int = 0


def compared(reports: Mapping[str, Report], missing: Sequence[str], folder: str) -> list[Finding]:
    """Judges hosts together.

    Args:
        reports: by host.
        missing: hosts that have not answered.
        folder: the working directory.

    Example:
        >>> one, other = (Report((), {"jax": version}, True, 0.0) for version in ("0.10.2", "0.12.0"))
        >>> [finding.what for finding in compared({"a": one, "b": other}, ["c"], "/w") if finding.level == "wrong"]
        ['c has not answered', 'jax is 0.10.2 on a and 0.12.0 on b']
    """
    found = [Finding("hosts", f"{', '.join(reports) or 'none'} answered")]
    found += [
        Finding("hosts", f"{host} has not answered", "wrong", "Above is what the way to it said.") for host in missing
    ]
    return [*found, *_differing(reports), *_slots(reports), *_places(reports, folder), *_clocks(reports)]


def _differing(reports: Mapping[str, Report]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for report in reports.values() for name in report.facts):
        groups: dict[str, list[str]] = {}
        for host, report in reports.items():
            groups.setdefault(str(report.facts.get(name)), []).append(host)
        if len(groups) > 1:
            what = " and ".join(f"{value} on {', '.join(hosts)}" for value, hosts in groups.items())
            yield Finding("hosts", f"{name} is {what}", "wrong", "All hosts of a run need the same.")


def _slots(reports: Mapping[str, Report]) -> Iterator[Finding]:
    for host, report in reports.items():
        count = int(report.facts.get(N_DEVICES) or 0)
        if report.facts.get("JAX's backend") == "gpu" and count < report.slots:
            what = f"{host} has {report.slots} slots and {count} GPUs"
            yield Finding(
                "hosts", what, "wrong", "Correct the hostfile, or find out which GPU is gone (nvidia-smi -L)."
            )


def _places(reports: Mapping[str, Report], folder: str) -> Iterator[Finding]:
    blind = [host for host, report in reports.items() if not report.sees_token]
    if blind:
        advice = "Mount one file system at this path on all hosts, or keep output_dir and the text on one that is."
        yield Finding("hosts", f"{folder} is another folder on {', '.join(blind)}", "wrong", advice)
    elif reports:
        yield Finding("hosts", f"all see {folder}")


def _clocks(reports: Mapping[str, Report]) -> Iterator[Finding]:
    for host, report in reports.items():
        if abs(report.seconds) > MOST_SECONDS:
            way = "ahead of" if report.seconds > 0 else "behind"
            what = f"the clock of {host} is {abs(report.seconds):.0f} s {way} the one here"
            yield Finding("hosts", what, "note", "Have chrony or ntpd set the clocks of all hosts.")
