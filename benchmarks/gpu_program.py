"""Compiles a 7.5B-parameter training step for 64 GPUs that are not there and prints what each stage holds and sends.

Beside jzero's four stages stand the ZeRO paper's formulas (Rajbhandari et al. 2020, sections 5 and 7) and a
hand-written step whose sharding is left to the compiler. Everything is read from the compiled programs; nothing runs.

    python benchmarks/gpu_program.py --gpus 64 --gpu h100-80g
"""

import argparse
import json
import time

import jzero  # noqa: F401  # before jax, so that the CUDA plugin stays quiet

# isort: split
import jax
import jax.numpy as jnp
from peers import deepspeed_config, hand_written
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from jzero.plan import COMPILE_ONLY_OPTIONS, GPUS, Program, compile_step, gpu_mesh, read_program

# Bytes of model state per parameter on one of N devices: mixed precision, Adam, gradients in 16 bits.
PAPER_STATE = {0: lambda n: 16, 1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}
PAPER_WIRE = {0: 2, 1: 2, 2: 2, 3: 3}  # elements sent per parameter and step


def compile_stage(config: GPTConfig, stage: int, gpu: str, n_gpus: int) -> Program:
    """jzero's step, one sequence per GPU."""
    return compile_step(
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        config=deepspeed_config(stage, n_gpus, "bf16"),
        sample_batch={"tokens": jax.ShapeDtypeStruct((n_gpus, config.seq_len + 1), jnp.int32)},
        gpu=gpu,
        n_gpus=n_gpus,
    )


def compile_annotated(config: GPTConfig, gpu: str, n_gpus: int) -> Program:
    """The hand-written step, state divided by annotations."""
    mesh = gpu_mesh(gpu, n_gpus)
    step, _, abstract = hand_written(config, mesh, n_gpus, sharded=True, compute_dtype=jnp.bfloat16)
    return read_program(step.lower(*abstract).compile(compiler_options=COMPILE_ONLY_OPTIONS), mesh)


def row(program: Program, seconds: float, n_params: int, stage: int | None, n_gpus: int) -> dict:
    """What the table shows of one program; bytes per GPU."""
    sent = {kind: program.wire_bytes(kind) for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")}
    return {
        "lasting": program.memory.argument,
        "temporary": program.memory.temp,
        "paper_state": None if stage is None else PAPER_STATE[stage](n_gpus) * n_params,
        **{f"sent_{kind}": n_bytes for kind, n_bytes in sent.items()},
        "sent": program.wire_bytes(),
        "paper_sent_16_bit": None if stage is None else PAPER_WIRE[stage] * 2 * n_params,
        "overlapped_share": program.overlapped_share(min_bytes=2**20),
        "compile_seconds": seconds,
    }


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--gpu", default="h100-80g", choices=GPUS)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--d-model", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    config = GPTConfig(
        vocab_size=50304,
        seq_len=1024,
        d_model=args.d_model,
        n_layer=args.layers,
        n_head=args.d_model // 128,
        scan_layers=True,
        remat=True,
    )
    n_params = config.n_params
    results = {}
    for stage in track([0, 1, 2, 3, None], description="compiling", console=Console(stderr=True)):
        start = time.perf_counter()
        if stage is None:
            program = compile_annotated(config, args.gpu, args.gpus)
        else:
            program = compile_stage(config, stage, args.gpu, args.gpus)
        name = "annotated" if stage is None else f"stage {stage}"
        results[name] = row(program, time.perf_counter() - start, n_params, stage, args.gpus)
    title = (
        f"{n_params / 1e9:.2f}B parameters on {args.gpus} x {args.gpu}, one {config.seq_len}-token sequence each; "
        "GB per GPU"
    )
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(title, results))


def table(title: str, results: dict) -> Table:
    """One column per program."""
    out = Table(title=title)
    out.add_column("")
    for name in results:
        out.add_column(name, justify="right")
    for key in next(iter(results.values())):
        values = [r[key] for r in results.values()]
        scale, digits = (1, 2) if key in ("overlapped_share", "compile_seconds") else (1e9, 3)
        out.add_row(key.replace("_", " "), *["" if v is None else f"{v / scale:.{digits}f}" for v in values])
    return out


if __name__ == "__main__":
    main()
