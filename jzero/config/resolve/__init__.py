"""What is worked out rather than read: `"auto"`, the three batch sizes, elasticity."""
