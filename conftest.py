"""Tests and examples in docstrings see 8 simulated CPU devices, strict dtype promotion, and warnings as errors."""

import os
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the time goes into the compiler. So it leaves most of its optimizations out, here and in the processes that
# tests start. (JAX's cache on disk is no way out: loaded from it, a program for CPUs that donates host memory crashes.)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jaxlib").startswith("0.10.") and "fusion_emitters" not in os.environ.get("XLA_FLAGS", ""):
    # The older way to emit fusions takes half the time. A later XLA has it no more and ends at a flag that it lacks.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jzero  # before jax, so that the CUDA plugin stays quiet

jzero.simulate_devices(8)

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
