"""A process of three that compares what it was given with the others, before any of them runs a program.

Prints what it is told, one line a comparison; the last one fails on the second process.
"""

import sys

from jzero.errors import ConfigError
from jzero.jaxpr.coordination import peers
from jzero.launch import initialize_from_environment, leave_failed
from jzero.launch.agreement import agree

if __name__ == "__main__":
    initialize_from_environment()
    own = peers().own
    for facts in (
        {"seed": 7, "data": {"seq_len": 32, "text": "a" * 200_000}},
        {"seed": 7, "training_arguments": {"save_steps": 5 if own == 1 else 9, "eval_steps": None}},
        {"seed": own},
        {"only here": True} if own == 0 else {},
    ):
        try:
            agree(facts)
            print("agreed")
        except ConfigError as error:
            print(error)
    if own == 1:
        print("error: no such file", file=sys.stderr)
        leave_failed(2, "no such file")
    try:
        agree({})
    except ConfigError as error:
        print(error)
        leave_failed(2, str(error))
