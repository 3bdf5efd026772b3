"""Programs that XLA compiles for GPUs that are not there, and what can be read from them."""
