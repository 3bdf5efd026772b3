"""State in host memory: where it lives, how it comes to the device in pieces, and how it is updated there."""
