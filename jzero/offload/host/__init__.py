"""State in host memory: how it passes through the devices in pieces, and how it is updated there."""
