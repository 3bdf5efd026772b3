"""When each parameter is gathered: ahead of its use, kept for the next one, or one layer early in a loop."""
