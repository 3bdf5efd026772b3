"""Tests and examples in docstrings see 8 simulated CPU devices, strict dtype promotion, and warnings as errors."""

import os
from importlib.metadata import version
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the time goes into the compiler. So it leaves most of its optimizations out, here and in the processes that
# tests start, and what another test, another process or the run before has compiled is not compiled again.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jaxlib").startswith("0.10.") and "fusion_emitters" not in os.environ.get("XLA_FLAGS", ""):
    # The older way to emit fusions takes half the time. A later XLA has it no more and ends at a flag that it lacks.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jzero  # before jax, so that the CUDA plugin stays quiet

jzero.simulate_devices(8)

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
