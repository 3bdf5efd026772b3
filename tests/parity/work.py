"""The work behind `tests/golden/parity`: the initial weights and the token stream that DeepSpeed trained on.

The curves there were produced by DeepSpeed 0.19.8 (torch 2.13 on CPU, 2 ranks): a GPT of 4 layers, 30 steps of 16
sequences of 128 tokens, in two accumulation steps. Numpy draws them here from the same seeds in the same order.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jzero.models.gpt_config import GPTConfig

GPT_CONFIG = GPTConfig(vocab_size=512, seq_len=128, d_model=256, n_layer=4, n_head=4)
N_STEPS, ROWS = 30, 16


def golden(name: str) -> dict[str, Any]:
    """DeepSpeed's curves of one run, and the configuration that made them."""
    return json.loads((Path(__file__).parents[1] / "golden" / "parity" / f"{name}.json").read_text())


def weights() -> dict[str, Any]:
    """The initial parameters, as `jzero.models.gpt.GPT` names them."""
    rng = np.random.default_rng(1234)
    d, n_layer = GPT_CONFIG.d_model, GPT_CONFIG.n_layer

    def normal(*shape: int, std: float = 0.02) -> np.ndarray:
        return (rng.standard_normal(shape) * std).astype(np.float32)

    def linear(n_in: int, n_out: int, std: float = 0.02) -> dict[str, np.ndarray]:
        return {"kernel": normal(n_in, n_out, std=std), "bias": np.zeros(n_out, np.float32)}

    def norm() -> dict[str, np.ndarray]:
        return {"scale": np.ones(d, np.float32), "bias": np.zeros(d, np.float32)}

    residual = 0.02 / np.sqrt(2 * n_layer)
    wte, wpe = normal(GPT_CONFIG.vocab_size, d), normal(GPT_CONFIG.seq_len, d, std=0.01)
    blocks = {
        i: {
            "ln_1": norm(),
            "attn": {"qkv": linear(d, 3 * d), "proj": linear(d, d, residual)},
            "ln_2": norm(),
            "mlp": {"fc": linear(d, 4 * d), "proj": linear(4 * d, d, residual)},
        }
        for i in range(n_layer)
    }
    return {"wte": wte, "wpe": wpe, "h": blocks, "ln_f": norm()}


def tokens() -> np.ndarray:
    """The stream, `int32[steps, rows, 129]`: the next token is a fixed permutation of the last in 7 cases of 10."""
    rng = np.random.default_rng(4321)
    vocab, length = GPT_CONFIG.vocab_size, GPT_CONFIG.seq_len
    successor = rng.permutation(vocab)
    stream = np.empty((N_STEPS, ROWS, length + 1), np.int32)
    stream[..., 0] = rng.integers(0, vocab, (N_STEPS, ROWS))
    for k in range(length):
        jumps = rng.random((N_STEPS, ROWS)) > 0.7
        stream[..., k + 1] = np.where(jumps, rng.integers(0, vocab, (N_STEPS, ROWS)), successor[stream[..., k]])
    return stream
