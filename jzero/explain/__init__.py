"""What became of each parameter, where it lies, and what each device holds."""
