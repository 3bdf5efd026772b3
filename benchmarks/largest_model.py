"""The largest GPT that trains on one GPU, with nothing, the optimizer, or parameters too in host memory.

Each model's stage-3 step (bf16, one sequence of 1024 tokens, every block rematerialised, AdamW) is compiled for a GPU
that is not there; what the program takes of the device and of the host is read from it. Needs `jzero[plan]`, no GPU.

    python benchmarks/largest_model.py [--json]
"""

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import jzero
from jzero.base.units import format_bytes
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss

CPU: dict[str, Any] = {"device": "cpu"}
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "optimizer": {"offload_optimizer": CPU},
    "optimizer and parameters": {"offload_optimizer": CPU, "offload_param": CPU},
}
# Layers, width: the sizes of the GPT-3 paper's table, GPT-NeoX 20B, and one of 66B as in OPT.
MODELS = [(24, 2048), (32, 2560), (32, 4096), (40, 5120), (44, 6144), (64, 9216), (96, 12288)]
TRIED = {"nothing": MODELS[:4], "optimizer": MODELS[1:6], "optimizer and parameters": MODELS[3:]}
GIB = 2**30
GPUS = {"24 GB": 24 * GIB, "32 GB": 32 * GIB, "40 GB": 40 * GIB, "80 GB": 80 * GIB, "141 GB": 141 * GIB}
USABLE = 0.92  # of a GPU's memory; the rest is taken by CUDA, NCCL and fragmentation


def measure(n_layer: int, width: int, zero: dict[str, Any]) -> dict[str, Any]:
    """Bytes of the device and of the host that one model's step takes."""
    config = GPTConfig(
        vocab_size=50257,
        seq_len=1024,
        d_model=width,
        n_layer=n_layer,
        n_head=width // 128,
        remat=True,
        scan_layers=True,
    )
    program = jzero.plan.compile_step(
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        config={
            "train_batch_size": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, **zero},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        },
        sample_batch={"tokens": jax.ShapeDtypeStruct((1, 1025), jnp.int32)},
        gpu="a100-80g",
        n_gpus=1,
    )
    memory = program.memory
    parameters = 12 * n_layer * width**2 + 13 * n_layer * width + (50257 + 1024) * width + 2 * width
    return {
        "parameters": parameters,
        "device": memory.peak,
        "host": memory.host_argument + memory.host_temp,
    }


def main() -> None:
    """Compiles, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    wants_json = parser.parse_args().json
    console = Console(stderr=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, zero in SETTINGS.items():
        for n_layer, width in TRIED[name]:
            with console.status(f"offloading {name}: {n_layer} layers of width {width}"):
                found.setdefault(name, []).append(measure(n_layer, width, zero))
    if wants_json:
        print(json.dumps(found))
        return
    table = Table(title="One GPU, one sequence of 1024 tokens, bf16, all blocks rematerialised")
    for column in ("on the host", "parameters", "device", "host"):
        table.add_column(column, justify="left" if column == "on the host" else "right")
    for name, rows in found.items():
        for row in rows:
            size = f"{row['parameters'] / 1e9:.1f}B"
            table.add_row(name, size, format_bytes(row["device"]), format_bytes(row["host"]))
        table.add_section()
    best = Table(title=f"Largest of these that fits ({USABLE:.0%} of the memory)")
    best.add_column("on the host")
    for gpu in GPUS:
        best.add_column(gpu, justify="right")
    for name, rows in found.items():
        fits = [[row["parameters"] for row in rows if row["device"] <= USABLE * size] for size in GPUS.values()]
        best.add_row(name, *[f"{max(sizes) / 1e9:.1f}B" if sizes else "-" for sizes in fits])
    out = Console()
    out.print(table)
    out.print(best)


if __name__ == "__main__":
    main()
