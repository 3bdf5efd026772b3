"""What `jzero doctor` says of a machine: its versions, devices, memory and network, and what is wrong with them."""

from jzero.doctor.checks import examine
from jzero.doctor.finding import Finding, Level
from jzero.doctor.machine import Machine, this_machine

__all__ = ["Finding", "Level", "Machine", "examine", "this_machine"]
