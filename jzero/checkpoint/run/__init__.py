"""A checkpoint while it is written or read: its folder, its lock, the processes that share it, what is selected."""
