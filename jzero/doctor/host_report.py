"""`python -m jzero.doctor.host_report TOKEN`: what one host of several has, as a line of JSON for the one that asks."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from jzero.doctor import examine, this_machine
from jzero.doctor.hosts import MARK, N_DEVICES

if __name__ == "__main__":
    machine = this_machine()
    report = {
        "host": os.environ["JZERO_HOST"],
        "findings": [dataclasses.asdict(finding) for finding in examine(machine)],
        "facts": {
            "Python": machine.python,
            **machine.versions,
            "NVIDIA's driver": machine.driver,
            "JAX's backend": machine.backend,
            N_DEVICES: len(machine.devices),
            "the kind of devices": ", ".join(sorted(set(machine.devices))),
        },
        "sees_token": Path(sys.argv[1]).is_file(),
    }
    # One line, and the time last: it is compared with that of the line's arrival.
    print(MARK + json.dumps({**report, "time": time.time()}), flush=True)
