"""What the trace of a step says without a compiler: memory, traffic and time in closed form."""
