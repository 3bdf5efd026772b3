"""What `jzero doctor` says of a machine: its versions, devices, memory and network, and what is wrong with them."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.doctor.checks import examine
    from jzero.doctor.finding import Finding, Level
    from jzero.doctor.machine import Machine, this_machine
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.doctor.checks": ("examine",),
            "jzero.doctor.finding": ("Finding", "Level"),
            "jzero.doctor.machine": ("Machine", "this_machine"),
        },
    )

__all__ = ["Finding", "Level", "Machine", "examine", "this_machine"]
