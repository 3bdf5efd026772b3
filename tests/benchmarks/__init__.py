"""The benchmarks are scripts beside each other, not a package: their folder goes onto the path."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
