"""Times attention by blocks against attention with all scores, forward and backward, and says what memory each takes.

Paths take turns, and medians are compared; memory is read from the compiled programs.

    python benchmarks/attention.py
    python benchmarks/attention.py --tokens 512,2048,8192 --rounds 5 --dtype bfloat16
"""

import argparse
import json
import statistics
import time
from typing import Any

import jzero  # before jax, so that the CUDA plugin stays quiet

# isort: split
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

PATHS = ("plain", "blockwise")


def compare(n_tokens: int, causal: bool, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Median seconds and bytes of working memory of each path, and the ratio of the seconds."""
    shape = (1, n_tokens, args.heads, args.width)
    q, k, v = (jax.random.normal(jax.random.key(i), shape).astype(args.dtype) for i in range(3))

    def compiled(path: str) -> jax.stages.Compiled:
        loss = lambda *x: jzero.attention(*x, causal=causal, implementation=path).astype(jnp.float32).sum()
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile()

    steps, seconds = {path: compiled(path) for path in PATHS}, {path: [] for path in PATHS}
    for round_ in track(range(args.rounds + 1), description=f"{n_tokens} tokens", console=console):
        for path in sorted(PATHS, reverse=round_ % 2 == 0):
            start = time.perf_counter()
            jax.block_until_ready(steps[path](q, k, v))
            if round_:  # the first one warms up
                seconds[path].append(time.perf_counter() - start)
    medians = {path: statistics.median(times) for path, times in seconds.items()}
    memory = {path: step.memory_analysis().temp_size_in_bytes for path, step in steps.items()}
    return {"seconds": medians, "ratio": medians["blockwise"] / medians["plain"], "temporary": memory}


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="512,2048", help="tokens in a row, with commas")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    console = Console(stderr=True)
    cases = [(int(n), causal) for n in args.tokens.split(",") for causal in (True, False)]
    results = {f"{n}{' causal' if causal else ''}": compare(n, causal, args, console) for n, causal in cases}
    if args.json:
        print(json.dumps(results))
        return
    table = Table("tokens", "plain, ms", "blockwise, ms", "ratio", "plain, MB", "blockwise, MB")
    for name, found in results.items():
        milliseconds = [f"{found['seconds'][path] * 1e3:.1f}" for path in PATHS]
        megabytes = [f"{found['temporary'][path] / 1e6:.1f}" for path in PATHS]
        table.add_row(name, *milliseconds, f"{found['ratio']:.2f}", *megabytes)
    Console().print(table)


if __name__ == "__main__":
    main()
