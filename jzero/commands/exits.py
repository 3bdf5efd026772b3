"""Exit statuses that the commands share."""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended
