"""Checkpoints from and for other programs: export, and import."""
