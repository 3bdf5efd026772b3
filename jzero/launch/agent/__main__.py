"""`python -m jzero.launch.agent`, as a launcher starts it on each node."""

import os
import sys

from jzero.launch.agent.loop import Agent

if __name__ == "__main__":
    events = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no event
    Agent(0, events, signals_reach_all="--signals-reach-all" in sys.argv[1:]).run()
