"""Is what `jzero plan` recommends right? Every setting that it holds for faster is compiled, and none of them may fit.

Pairs of a model and a cluster, from roomy to hopeless. The clusters have GPUs whose memory is cut down, so that small
models, which compile in seconds, meet the same choices as large ones on real GPUs. Where nothing fits, every setting
is compiled; where the advice says that more GPUs would do, so is that. Nothing runs, and no GPU is needed.

    python benchmarks/recommendation.py [--pairs gpt-roomy,gpt-tight] [--json]
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import programs  # noqa: F401  # before jax, so that the compiler stays quiet

# isort: split
from rich.console import Console
from rich.table import Table

from jzero import models
from jzero.plan import Plan, Setting, plan
from jzero.plan.search.recommendation import costs
from jzero.plan.search.row import Row
from jzero.plan.search.setting import fallbacks, settings
from jzero.plan.search.workload import Workload, workload_of

STAGES = (0, 1, 2, 3)
GPT = {"family": "gpt", "vocab_size": 8192, "seq_len": 512, "d_model": 512, "n_layer": 8, "n_head": 8}
LLAMA = {"family": "llama", "vocab_size": 8192, "seq_len": 512, "d_model": 512, "n_layer": 8, "n_head": 8}
VIT = {"family": "vit", "image_size": 224, "patch_size": 16, "n_classes": 10, "d_model": 384, "n_layer": 6, "n_head": 6}
SCANNED = {"scan_layers": True}
LSTM = {"family": "lstm", "vocab_size": 4096, "d_model": 1024, "n_layer": 2}
RESNET = {"family": "resnet", "depth": 8, "n_classes": 100}


@dataclass(frozen=True)
class Pair:
    """A model and a cluster.

    Attributes:
        model: a run file's `model` part.
        gpu: whose speed, one of `jzero.plan.GPUS`.
        memory: its memory, in MB.
        n_gpus: how many.
        micro: samples of a GPU and micro-batch, as given.
        accumulation: micro-batches, as given.
        seq_len: tokens of a sequence.
    """

    model: Mapping[str, Any]
    gpu: str
    memory: int
    n_gpus: int
    micro: int
    accumulation: int = 1
    seq_len: int = 512


PAIRS = {
    "gpt-roomy": Pair({**GPT, **SCANNED}, "h100-80g", 4000, 8, 4),
    "gpt-tight": Pair({**GPT, **SCANNED}, "h100-80g", 500, 8, 4),
    "gpt-many": Pair({**GPT, **SCANNED}, "a100-80g", 400, 64, 4),
    "gpt-one": Pair({**GPT, **SCANNED}, "rtx4090-24g", 900, 1, 4),
    "gpt-unrolled": Pair({**GPT, "n_layer": 3}, "a100-40g", 190, 8, 2),
    "llama-roomy": Pair({**LLAMA, **SCANNED, "n_kv_head": 2}, "h100-80g", 1600, 16, 2, 2),
    "llama-tight": Pair({**LLAMA, **SCANNED, "n_kv_head": 2}, "a100-80g", 450, 16, 2, 2),
    "llama-hopeless": Pair({**LLAMA, **SCANNED}, "h100-80g", 55, 4, 1),
    "vit-tight": Pair({**VIT, **SCANNED}, "h100-80g", 280, 8, 4),
    "vit-hopeless": Pair({**VIT, **SCANNED}, "rtx4090-24g", 14, 8, 1),
    "resnet-tight": Pair(RESNET, "h100-80g", 160, 8, 8),
    "lstm-hopeless": Pair(LSTM, "a100-80g", 50, 4, 2, seq_len=64),
    "gpt-few": Pair({**GPT, **SCANNED, "d_model": 1024}, "h100-80g", 330, 4, 1, seq_len=64),
    "llama-few": Pair({**LLAMA, **SCANNED, "d_model": 1024}, "a100-80g", 330, 4, 1, seq_len=64),
    "vit-few": Pair({**VIT, **SCANNED}, "h100-80g", 45, 4, 1),
}


def run_of(pair: Pair, gpu: str) -> dict[str, Any]:
    """What `jzero.plan.plan` takes."""
    model = models.build(pair.model)
    config = {
        "train_micro_batch_size_per_gpu": pair.micro,
        "gradient_accumulation_steps": pair.accumulation,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "AdamW"},
    }
    rows = pair.n_gpus * pair.micro * pair.accumulation
    has_blocks = pair.model["family"] not in ("resnet", "lstm")
    return {
        "model": model.factory,
        "rematerialised": models.build({**pair.model, "remat": True}).factory if has_blocks else None,
        "loss_fn": model.loss_fn,
        "config": config,
        "sample_batch": model.batch(rows, pair.seq_len),
        "gpu": gpu,
        "n_gpus": pair.n_gpus,
    }


def all_settings(base: Setting, group: int, *, remat: bool) -> list[Setting]:
    """Everything that may be recommended."""
    found = list(settings(base, STAGES, group))
    for setting in found:  # which grows
        found += [s for s in fallbacks(setting, divisible=True, remat=remat) if s not in found]
    return found


def compiled(what: Workload, setting: Setting) -> Row:
    """The row of a setting with its compiled program's figures."""
    batch = setting.micro_batch != what.as_given().micro_batch
    return what.compile(what.estimate(setting, batch=batch), batch=batch)


def check(pair: Pair, folder: Path, say: Any) -> dict[str, Any]:
    """What is recommended, and what brute force says of it."""
    gpu = folder / "gpu.toml"
    gpu.write_text(f'like = "{pair.gpu}"\nmemory = {pair.memory * 10**6}\n')
    run = run_of(pair, str(gpu))
    say("planning")
    found = plan(**run, compiled="recommended")
    what = workload_of(**run)
    every = all_settings(found.base, what.group, remat=run["rematerialised"] is not None)
    rows = {s: what.estimate(s, batch=s.micro_batch != found.base.micro_batch) for s in every}
    chosen = found.recommendation.setting
    order = costs(rows)
    faster = [s for s in every if chosen is None or order[s] < order[chosen]]
    wrong = []
    for i, setting in enumerate(faster):
        say(f"compiling {i + 1} of {len(faster)}")
        row = compiled(what, setting)
        if row.fits:
            wrong.append(f"{setting} ({setting.micro_batch} x {setting.accumulation}) fits too")
    if chosen is not None and not compiled(what, chosen).fits:
        wrong.append(f"{chosen} does not fit")
    advised = list(_advised(found, what, wrong))
    return {
        **asdict(pair),
        "settings": len(every),
        "recommended": chosen and asdict(chosen),
        "faster_ones_compiled": len(faster),
        "advice_compiled": advised,
        "wrong": wrong,
        "reason": found.recommendation.reason,
        "advice": list(found.recommendation.advice),
    }


def _advised(found: Plan, what: Workload, wrong: list[str]) -> Iterator[str]:
    """Compiles what the advice says more GPUs would hold."""
    for sentence in found.recommendation.advice:
        if said := re.match(r"About ([\d,]+) such GPUs would hold stage (\d)", sentence):
            n_gpus, micro = int(said[1].replace(",", "")), re.search(r", (\d+) a GPU x (\d+)", sentence)
            setting = replace(found.base, stage=int(said[2]), remat="rematerialised" in sentence)
            if micro:
                setting = replace(setting, micro_batch=int(micro[1]), accumulation=int(micro[2]))
            there = what.on(n_gpus, setting)
            row = there.compile(there.estimate(setting, batch=True), batch=True)
            yield f"{setting} on {n_gpus} GPUs: {row.peak / 1e6:.0f} of {row.cluster.usable / 1e6:.0f} MB"
            if not row.fits:
                wrong.append(f"{n_gpus} GPUs do not hold {setting}")


def _named(setting: Mapping[str, Any] | None) -> str:
    if setting is None:
        return "nothing fits"
    name = str(Setting(**setting))
    return f"{name}, {setting['micro_batch']} x {setting['accumulation']}{', remat' * setting['remat']}"


def main() -> None:
    """Checks the pairs, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=",".join(PAIRS), help="with commas (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    names = args.pairs.split(",")
    if unknown := [name for name in names if name not in PAIRS]:
        parser.error(f"no pair is named {unknown[0]!r}; known are {', '.join(PAIRS)}")
    found = {}
    with TemporaryDirectory() as folder, Console(stderr=True).status("") as status:
        for name in names:
            found[name] = check(PAIRS[name], Path(folder), lambda text, name=name: status.update(f"{name}: {text}"))
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(title="Recommended, and whether a setting held for faster fits after all")
    for heading in ("pair", "GPUs", "MB each", "given", "recommended", "faster", "fit"):
        table.add_column(heading, justify="right" if heading in ("GPUs", "MB each", "faster", "fit") else "left")
    for name, row in found.items():
        given, faster = f"{row['micro']} x {row['accumulation']}", str(row["faster_ones_compiled"])
        numbers = (str(row["n_gpus"]), str(row["memory"]))
        table.add_row(name, *numbers, given, _named(row["recommended"]), faster, str(len(row["wrong"])))
    Console(width=max(110, Console().width)).print(table)
    for name, row in found.items():
        for text in (*row["wrong"], *row["advice_compiled"]):
            print(f"{name}: {text}")


if __name__ == "__main__":
    main()
