"""Measures AdamW with its state in files: against plain reading and writing of the same bytes, and against memory.

The state (fp32 parameters and two moments) is in files, parameters and gradients in bf16 are in memory. In every round
the same bytes are read from end to end, written from end to end, and passed through the update, all by the same
requests; and as many elements are updated that stay in their buffers. Medians are compared. The disk takes 24 bytes a
parameter while it runs; files are read and written without the system's cache.

    python benchmarks/offload_nvme.py --parameters 1e9 --rounds 3 --folder /nvme
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jzero  # noqa: F401  before jax, so that the CUDA plugin stays quiet

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from jzero.base.units import format_bytes
from jzero.config.schema.sections import Aio
from jzero.config.schema.zero import OffloadOptimizer
from jzero.errors import JzeroError
from jzero.offload.host.update import plan_update
from jzero.offload.nvme.disk import Disk, File, aligned_memory
from jzero.offload.nvme.folder import Folder
from jzero.offload.nvme.groups import Shard
from jzero.offload.nvme.kinds import sort_kinds
from jzero.offload.nvme.nvme_state import GROUP_ELEMENTS
from jzero.offload.nvme.store import Store, lay_out
from jzero.sharding.placement import Placement
from jzero.sharding.trees import owners

LARGEST = 2**24  # elements of a parameter


def adamw(n_leaves: int, size: int) -> tuple[Any, list[Any], Any]:
    """The kinds of parameters that AdamW updates, the kind of each, and the operands of the whole update."""
    params = {f"w{i:03}": jax.ShapeDtypeStruct((size,), jnp.float32) for i in range(n_leaves)}
    optimizer = optax.with_extra_args_support(optax.adamw(1e-3, weight_decay=0.1))
    state = jax.eval_shape(optimizer.init, params)
    own, lie = jax.tree.leaves(owners(state, params)), [Placement((size,))] * n_leaves
    plan = plan_update(optimizer, params, state, own, list(params), lie, [True] * n_leaves)
    operands = [*params.values(), *jax.tree.leaves(state), *params.values(), jax.ShapeDtypeStruct((), jnp.float32)]
    return *sort_kinds(plan, operands, [(jnp.bfloat16,)] * n_leaves), operands


class Memory:
    """In the place of folder and disk: state stays where it is."""

    file = None

    def begin(self, *_: Any) -> None:
        """Nothing to begin."""

    commit = read = write = begin


def seconds(action: Callable[..., object], *arguments: Any) -> float:
    """How long an action takes."""
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def measure(n_parameters: float, rounds: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs everything in a folder."""
    size = int(min(n_parameters, LARGEST))
    n_leaves = round(n_parameters / size)
    (kinds, kind_of, operands), aio = adamw(n_leaves, size), Aio()
    layout = lay_out([Shard(size, kind) for kind in kind_of], kinds, GROUP_ELEMENTS)
    files = Folder(folder / "state", layout.n_bytes, "benchmark")
    disk = Disk(aio.block_size, aio.queue_depth * aio.intra_op_parallelism)

    def store_in(folder: Any, disk: Any) -> Store:
        n_buffers = OffloadOptimizer().buffer_count
        return Store(layout, folder, disk, n_buffers, dict(enumerate(operands)), grad_dtype=jnp.bfloat16, divides=False)

    store, in_memory = store_in(files, disk), store_in(Memory(), Memory())
    random = np.random.default_rng(0).standard_normal(size, np.float32)
    grads = [(random * (1 + i) / n_leaves).astype(jnp.bfloat16) for i in range(n_leaves)]
    params = [np.zeros(size, jnp.bfloat16) for _ in range(n_leaves)]
    zeros, initial = np.zeros_like(random), random / 64
    files.replace()
    for number, param in enumerate(params):
        say(f"writing the state, {number + 1} of {n_leaves}")
        store.write({(number, 0): zeros, (number, 1): zeros, (number, 2): initial})
        param[:] = initial

    def update(store: Store, step: int) -> None:
        def taken(number: int, new: np.ndarray) -> None:
            params[number][:] = new

        scalars = {i: np.int32(step) for kind in kinds for i in kind.scalars}
        store.update(step, (dict, dict), lambda number: grads[number], scalars, None, taken)

    def pass_through(transfer: Callable[..., None], file: File) -> None:
        memory = aligned_memory(layout.groups[0].n_bytes)
        memory[:] = 1
        for group in layout.groups:
            transfer(file, memory[: group.n_bytes], group.offset)

    found: dict[str, list[float]] = {"update in memory": [], "read": [], "write": [], "update": []}
    for step in range(rounds):
        say(f"round {step + 1} of {rounds}")
        found["update in memory"].append(seconds(update, in_memory, step))
        found["read"].append(seconds(pass_through, disk.read, files.file))
        found["write"].append(seconds(pass_through, disk.write, files.begin(step, dict)))
        found["update"].append(seconds(update, store, step))
    return {
        "parameters": n_leaves * size,
        "bytes": layout.n_bytes,
        "seconds": found,
        "error": float(np.abs(store.read([0])[0, 2] - expected(grads[0], initial, rounds)).max()),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def expected(grad: np.ndarray, param: np.ndarray, steps: int) -> np.ndarray:
    """One parameter after some steps of optax."""
    optimizer = optax.adamw(1e-3, weight_decay=0.1)

    @jax.jit
    def step(grad: jax.Array, param: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(grad.astype(jnp.float32), state, param)
        return optax.apply_updates(param, updates), state

    new, state = jnp.asarray(param), optimizer.init(jnp.asarray(param))
    for _ in range(steps):
        new, state = step(grad, new, state)
    return np.asarray(new)


def report(results: dict[str, Any]) -> Table:
    """The figures, and what they come to."""
    n_bytes, medians = results["bytes"], {k: statistics.median(v) for k, v in results["seconds"].items()}
    plain = medians["read"] + medians["write"]
    table = Table(
        title=f"AdamW of {results['parameters'] / 1e9:.2f}B parameters, {format_bytes(n_bytes)} of state in files",
        caption=f"{results['cores']} cores, load {results['load']:.0f}; at most {format_bytes(results['peak_memory'])} "
        f"of memory; differs from optax in memory by {results['error']:.1e}",
    )
    for column in ("what", "median", "bandwidth", "compared"):
        table.add_column(column, justify="left" if column == "what" else "right")
    rate = lambda count, time: f"{format_bytes(round(count / time))}/s"
    table.add_row("read plainly", f"{medians['read']:.1f} s", rate(n_bytes, medians["read"]), "")
    table.add_row("write plainly", f"{medians['write']:.1f} s", rate(n_bytes, medians["write"]), "")
    share = f"{plain / medians['update']:.0%} of both, one after the other"
    table.add_row("update in files", f"{medians['update']:.1f} s", rate(2 * n_bytes, medians["update"]), share)
    times = f"{medians['update'] / medians['update in memory']:.1f} times faster than in files"
    table.add_row("update alone, in memory", f"{medians['update in memory']:.1f} s", "", times)
    return table


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9, help="rounded to a multiple of 2^24")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="offload_nvme-", dir=arguments.folder))
    try:
        with console.status("starting") as status:
            results = measure(arguments.parameters, arguments.rounds, folder, status.update)
    except JzeroError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(results))
    else:
        Console().print(report(results))


if __name__ == "__main__":
    main()
