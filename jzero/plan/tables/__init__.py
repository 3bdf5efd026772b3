"""What was found, as tables for a terminal."""
