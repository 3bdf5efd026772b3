"""What `jzero train` is made of: the loop, its data, its metrics, resuming, interrupts."""
