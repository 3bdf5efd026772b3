"""Where a configuration comes from: JSON and HJSON files, Accelerate's files."""
