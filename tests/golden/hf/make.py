"""Writes the frozen oracles of this folder with transformers and torch (CPU): `python tests/golden/hf/make.py`.

Each folder is a tiny random checkpoint as `save_pretrained` writes it, in bfloat16, with `expected.npz`: a batch, and
of the same weights in float32 the logits, the loss, and of every gradient its norm and its product with a fixed array.
`versions.json` says what made them. Needs what `pip install jzero[hf-test]` installs.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 5}
GPT2 = {
    "vocab_size": 64,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {
    **{k: v for k, v in SIZES.items() if k != "num_key_value_heads"},
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "id2label": {0: "no", 1: "yes", 2: "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {**SIZES, "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8, "rope_theta": 5e5}},
    ),
    "llama-tied": ("Llama", {**SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {**SIZES, "sliding_window": 5}),
    "qwen2": ("Qwen2", {**SIZES, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (
        "Qwen3",
        {**SIZES, "head_dim": 16, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "gemma2": ("Gemma2", {**SIZES, **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}),
    "gemma3": (
        "Gemma3Text",
        {
            **SIZES,
            **GEMMA,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "olmo2": ("Olmo2", SIZES),
    "gpt2": ("GPT2", {**GPT2, **NO_DROPOUT}),
    "gpt2-untied": ("GPT2", {**GPT2, **NO_DROPOUT, "tie_word_embeddings": False, "n_inner": 48}),
    "bert": ("Bert", BERT),
    "roberta": ("Roberta", {**BERT, "pad_token_id": 1, "bos_token_id": 0}),
}
"""Name -> family and configuration."""

CLASSES = {
    "Gemma3Text": "Gemma3ForCausalLM",
    "GPT2": "GPT2LMHeadModel",
    "Bert": "BertForSequenceClassification",
    "Roberta": "RobertaForSequenceClassification",
}


def model_of(name: str, **changes: Any) -> Any:
    """A random model of a case, in float32, whose weights bfloat16 holds exactly."""
    import torch
    import transformers

    family, values = CASES[name]
    config = getattr(transformers, f"{family}Config")(**{**values, **changes}, attn_implementation="eager")
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + 0.15 * torch.randn(p.shape)).bfloat16().float())
    return model


def batch_of(name: str) -> dict[str, np.ndarray]:
    """Eight rows; of an encoder padded ones of two types, with labels."""
    random = np.random.default_rng(1)
    if not name.startswith(("bert", "roberta")):
        return {"tokens": random.integers(0, 64, (8, 13), dtype=np.int32)}
    mask = (np.arange(12) < random.integers(6, 13, (8, 1))).astype(np.int32)
    pad = 1 if name.startswith("roberta") else 0
    tokens = np.where(mask, random.integers(3, 64, mask.shape), pad).astype(np.int32)
    batch = {"tokens": tokens, "mask": mask, "label": random.integers(0, 3, 8, dtype=np.int32)}
    types = {} if pad else {"types": random.integers(0, 2, mask.shape, dtype=np.int32)}
    return {**batch, **types}


def evaluate(model: Any, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
    """Logits, loss, and gradients by the tensors' names."""
    import torch

    given = {name: torch.tensor(x).long() for name, x in batch.items()}
    if "label" in batch:
        out = model(
            given["tokens"], attention_mask=given["mask"], token_type_ids=given.get("types"), labels=given["label"]
        )
        logits = out.logits
    else:
        out = model(given["tokens"], labels=given["tokens"])
        logits = out.logits[:, :-1]
    model.zero_grad()
    out.loss.backward()
    grads = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach().numpy(), float(out.loss), grads


def sketch(name: str, x: np.ndarray) -> np.ndarray:
    """Two numbers by which an array is known: its norm, and its product with waves that are its name's."""
    waves = np.cos(np.arange(x.size) * (1 + len(name) % 7) + 1).reshape(x.shape)
    x = x.astype(np.float64)
    return np.array([np.sqrt((x * x).sum()), (x * waves).sum()])


def write(name: str, folder: Path, make: Callable[[str], Any] = model_of) -> None:
    """Writes the folder of a case."""
    import torch

    model, batch = make(name), batch_of(name)
    logits, loss, grads = evaluate(model, batch)
    model.to(torch.bfloat16).save_pretrained(folder)
    sketches = {f"grad/{n}": sketch(n, g).astype(np.float64) for n, g in grads.items()}
    np.savez_compressed(
        folder / "expected.npz", logits=logits, loss=loss, **{f"batch/{n}": x for n, x in batch.items()}, **sketches
    )


def ropes() -> dict[str, Any]:
    """Frequencies and amplitudes as transformers computes them for stretched positions."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    published = {
        "llama3": {**LLAMA3, "original_max_position_embeddings": 8192, "rope_theta": 5e5},
        "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6},
        "yarn-mscale": {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 1e4,
            "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 24, "beta_slow": 2, "truncate": False,
        },
    }  # fmt: skip
    found = {}
    for name, parameters in published.items():
        config = LlamaConfig(
            hidden_size=512, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(parameters)
        )
        frequencies, amplitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        found[name] = {"parameters": parameters, "frequencies": frequencies.tolist(), "amplitude": amplitude}
    return found


CURVE = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
"""AdamW of the fine-tuning whose losses `curve.json` holds."""


def batches() -> list[np.ndarray]:
    """Thirty batches of tokens that can be learned: each counts up by a step of its row's own, with some noise."""
    random = np.random.default_rng(2)
    rows = lambda: (random.integers(0, 64, (8, 1)) + random.integers(1, 4, (8, 1)) * np.arange(13)) % 64
    noise = lambda x: np.where(random.random(x.shape) < 0.1, random.integers(0, 64, x.shape), x)
    return [noise(rows()).astype(np.int32) for _ in range(30)]


def curve(folder: Path) -> list[float]:
    """The losses of thirty steps of full fine-tuning with transformers and torch's AdamW, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), **CURVE)
    losses = []
    for batch in batches():
        tokens = torch.tensor(batch).long()
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    import torch
    import transformers

    for case in sys.argv[1:] or CASES:
        write(case, HERE / case)
    (HERE / "curve.json").write_text(json.dumps(curve(HERE / "llama")) + "\n")
    (HERE / "rope.json").write_text(json.dumps(ropes()) + "\n")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "versions.json").write_text(json.dumps(versions) + "\n")
