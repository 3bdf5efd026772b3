"""Tests and examples in docstrings see 8 simulated CPU devices, strict dtype promotion, and warnings as errors."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jzero  # before jax, so that the CUDA plugin stays quiet

jzero.simulate_devices(8)

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
