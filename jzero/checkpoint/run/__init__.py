"""A checkpoint while it is written or read: its folder and lock, the processes at work, and what is selected."""
