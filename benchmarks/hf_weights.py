"""Measures how two processes of four simulated devices read a published checkpoint into their shards, and export it.

Anonymous memory is looked at every few milliseconds: while the weights are read and become an engine's state it should
grow by the shards of the process and little more, and while they are exported by one leaf. The time is compared with
that of two processes which read and cast half of the same bytes each with NumPy. Files lie in the system's cache.

    python benchmarks/hf_weights.py --megabytes 2000
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np

PROCESSES, DEVICES, VOCAB, WIDTH, HIDDEN = 2, 4, 32000, 1024, 2816
PER_LAYER = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN + 2 * WIDTH


def make_checkpoint(folder: Path, megabytes: float) -> None:
    """Writes a Llama of about this size in bfloat16, in files of at most 500 MB with their index."""
    from jzero.checkpoint.convert.exporting import shards_of
    from jzero.checkpoint.format.safetensors import Entry, write

    vocab = VOCAB if megabytes > 500 else 1000
    n_layer = max(1, round((megabytes * 1e6 / 2 - 2 * vocab * WIDTH) / PER_LAYER))
    noise = (np.random.default_rng(0).standard_normal(2**20, np.float32) * 0.02).astype(ml_dtypes.bfloat16)

    def entry(name: str, *shape: int) -> Entry:
        return Entry(name, shape, "bfloat16", lambda: [np.resize(noise, shape)])

    sizes = {"gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    entries = [entry("model.embed_tokens.weight", vocab, WIDTH)]
    for n in range(n_layer):
        layer = f"model.layers.{n}"
        entries += [entry(f"{layer}.self_attn.{x}_proj.weight", WIDTH, WIDTH) for x in "qkvo"]
        entries += [entry(f"{layer}.mlp.{x}_proj.weight", *shape) for x, shape in sizes.items()]
        entries += [entry(f"{layer}.{x}_layernorm.weight", WIDTH) for x in ("input", "post_attention")]
    entries += [entry("model.norm.weight", WIDTH), entry("lm_head.weight", vocab, WIDTH)]
    index: dict[str, str] = {}
    for i, shard in enumerate(shards_of(entries, 500 * 10**6)):
        write(folder / f"part-{i}.safetensors", shard, {"format": "pt"})
        index |= {e.name: f"part-{i}.safetensors" for e in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": n_layer,
        "num_attention_heads": 8,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))


def anonymous() -> int:
    """Bytes of this process's memory that no file holds."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class Growth:
    """By how many bytes anonymous memory has grown, at most."""

    most = 0


@contextmanager
def growth() -> Iterator[Growth]:
    """Looks at this process's memory while something runs."""
    before, ended, found = anonymous(), threading.Event(), Growth()

    def watch() -> None:
        while not ended.wait(0.003):
            found.most = max(found.most, anonymous() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def load(folder: Path) -> dict[str, float]:
    """What one process of the job does and finds."""
    import jzero

    jzero.simulate_devices(DEVICES)
    jzero.initialize_from_environment()
    import jax
    from jax.experimental import multihost_utils

    from jzero.checkpoint.convert.hf_export import export_hf
    from jzero.engine import Engine
    from jzero.models import from_hf
    from jzero.zero.published import read_published

    model = from_hf(folder)
    fns = jzero.functional(
        model=model.factory,
        loss_fn=model.loss_fn,
        config={
            "train_batch_size": 8,
            "zero_optimization": {"stage": 3},
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        },
        sample_batch={"tokens": np.zeros((8, 17), np.int32)},
    )
    assert model.weights is not None
    multihost_utils.sync_global_devices("built")
    with growth() as grown:
        began = time.perf_counter()
        params = read_published(fns, model.weights)
        seconds = time.perf_counter() - began
        store = fns.open_store()
        state = store.init_over(np.uint32(0), params)
        jax.block_until_ready(state)
    held = sum(part.data.nbytes for x in jax.tree.leaves(state) for part in x.addressable_shards)
    engine = Engine(fns, state, store)
    saved = folder.parent / "saved"
    engine.save_checkpoint(saved, {"model": {"hf": str(folder)}})
    found = {"read_seconds": seconds, "grown": grown.most, "held": held}
    if jax.process_index() == 0:
        with growth() as exporting:
            began = time.perf_counter()
            export_hf(saved, folder.parent / "exported")
        leaf = max(x.size * x.dtype.itemsize for x in jax.tree.leaves(fns.whole.params))
        found |= {"export_seconds": time.perf_counter() - began, "export_grown": exporting.most, "largest_leaf": leaf}
    multihost_utils.sync_global_devices("exported")
    return found


def with_numpy(folder: Path, rank: int) -> dict[str, float]:
    """Reads and casts this process's half of every tensor, and keeps it."""
    from jzero.checkpoint.convert.weights import open_weights

    began, kept = time.perf_counter(), []
    for entry in open_weights(folder).entries.values():
        assert entry.mapped is not None
        half = len(entry.mapped()) // PROCESSES
        kept.append(np.array(entry.mapped()[rank * half : (rank + 1) * half]).astype(np.float32))
    return {"read_seconds": time.perf_counter() - began}


def run(what: str, folder: Path) -> list[dict[str, float]]:
    """Starts two processes and gathers what they found."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(PROCESSES), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--worker", what, "--folder", str(folder)]
    running = [
        subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(PROCESSES)
    ]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"{what} failed: {said}")
    return [json.loads(text.splitlines()[-1]) for text in said]


def measure(megabytes: float, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Makes a checkpoint and lets both read it."""
    source = folder / "source"
    source.mkdir()
    make_checkpoint(source, megabytes)
    return {what: run(what, source) for what in ("numpy", "load")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--json", action="store_true", help="print everything that was measured as JSON")
    parser.add_argument("--worker", choices=["load", "numpy"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        rank = int(os.environ["RANK"])
        print("\n" + json.dumps(load(given.folder) if given.worker == "load" else with_numpy(given.folder, rank)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.megabytes, Path(folder))
    if given.json:
        print(json.dumps(found))
        return
    slowest = {what: max(x["read_seconds"] for x in each) for what, each in found.items()}
    mb = lambda n: f"{n / 1e6:,.0f} MB"
    for rank, each in enumerate(found["load"]):
        over = each["grown"] - each["held"]
        print(f"process {rank}: holds {mb(each['held'])}, memory grew by {mb(each['grown'])}, {mb(over)} more")
    ratio = slowest["load"] / slowest["numpy"]
    print(f"read in {slowest['load']:.1f} s; NumPy takes {slowest['numpy']:.1f} s: {ratio:.2f}")
    first = found["load"][0]
    print(f"exported in {first['export_seconds']:.1f} s, memory grew by {mb(first['export_grown'])}, ", end="")
    print(f"the largest leaf has {mb(first['largest_leaf'])}")


if __name__ == "__main__":
    main()
