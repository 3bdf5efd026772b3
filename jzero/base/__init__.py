"""What every room may use and that uses none: units, and a quiet start on machines without a GPU."""
