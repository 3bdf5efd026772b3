"""A checkpoint as a folder in the format of Hugging Face, which transformers and vLLM open.

Leaves are read once, one after the other, and each is written into the places of its tensors: of a leaf that holds all
layers into as many. In memory is one leaf at a time, or less where nothing has to be turned round.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np

from jzero import models
from jzero.base.types import Json
from jzero.checkpoint.convert.exporting import (
    DTYPES,
    check_alone,
    dotted,
    entry_of,
    shards_of,
    taken,
    unfinished_file,
)
from jzero.checkpoint.convert.hf_weights import leaves_of
from jzero.checkpoint.format.header import Header
from jzero.checkpoint.format.safetensors import Entry, as_bytes, head_of
from jzero.checkpoint.run.loading import PathLike, check_files, read_header
from jzero.errors import CheckpointError
from jzero.models.hf.published import Published, open_published
from jzero.models.hf.rules import TRANSFORMS, Transform

_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template*",
    "*.model",
)
"""What else of a source's folder a reader needs."""

_AT_ONCE, _TURNED_AT_ONCE = 2**22, 2**18
"""About how many elements are written at once; of those that are turned round so few that caches hold them."""

_PARAMS = "params/"


def export_hf(
    path: PathLike,
    out: PathLike,
    *,
    source: PathLike | None = None,
    dtype: Literal["fp32", "bf16"] | None = None,
    max_shard_bytes: int = 5 * 10**9,
    labels: Sequence[str] | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Writes config.json, the weights as safetensors, and what the source has beside them: the tokenizer's files.

    Args:
        path: a checkpoint of a model that `jzero.models.from_hf` made, or a folder of checkpoints: the newest.
        out: a folder; it is made if it is not there.
        source: the folder that the model came from; by default the one that the checkpoint names.
        dtype: of the weights; that of the source by default.
        max_shard_bytes: how long a file may be.
        labels: the classes of a model that classifies, where they are others than in the source.
        overwrite: replace a model that is there; it is refused otherwise.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: the checkpoint is of no such model, does not fit its source, is damaged, or `out` cannot be
            written to or holds a model already.
        ConfigError: the source has no model that jzero has.
    """
    folder, head = read_header(path)
    check_files(folder, head)
    published = _published(folder, head, source, labels)
    out = Path(out)
    if out.exists() and out.samefile(published.folder):
        raise CheckpointError(
            f"{out} is the folder that the model came from; choose another, which leaves it as it is."
        )
    if (config := out / "config.json").exists() and not overwrite:
        raise taken(config)
    name = DTYPES[dtype] if dtype is not None else _dtype_of(published)
    plan = _plan(folder, head, published, name)
    if (size := published.values.get("dtype", published.values.get("torch_dtype"))) and size != name:
        logging.getLogger("jzero").info("%s: the weights are %s, those of the source are %s.", out, name, size)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = _write(out, plan, max_shard_bytes, overwrite)
        with unfinished_file(config) as unfinished:
            unfinished.write_text(json.dumps(published.exported_config(name), indent=2) + "\n")
        return [config, *_copy(published.folder, out), *written]
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written to: {error.strerror}.") from error


class _Leaf(NamedTuple):
    """A leaf and the tensors that it becomes: all of its rows, or each row one tensor."""

    entry: Entry
    tensors: tuple[Entry, ...]
    transform: Transform
    stacked: bool


def _published(folder: Path, head: Header, source: PathLike | None, labels: Sequence[str] | None) -> Published:
    """The source, with as many token ids and classes as the checkpoint has."""
    extra = head.metadata.get("extra")
    model = extra.get("model") if isinstance(extra, dict) else None
    if source is None:
        if not isinstance(model, dict) or "hf" not in model:
            raise CheckpointError(
                f"The checkpoint {folder} does not say from which folder in the format of Hugging Face its model came; "
                "give it with --source."
            )
        weights = models.build({"hf": model["hf"]}).weights
        assert weights is not None
        source = weights.published.folder
    shapes = {dotted(name): leaf.shape for name, leaf in head.leaves.items() if name.startswith(_PARAMS)}
    rows = shapes.get("wte", (None,))[0]
    published = open_published(Path(source), {}, labels=None if labels is None else tuple(labels))
    if rows is not None and rows != published.config.vocab_size:
        published = open_published(Path(source), {}, vocab_size=rows, labels=None if labels is None else tuple(labels))
    classes = shapes.get("head.bias", (None,))[0]
    if classes is not None and classes != getattr(published.config, "n_labels", classes):
        raise CheckpointError(
            f"The checkpoint {folder} has {classes} classes, and {source} names others; give theirs with `labels=`."
        )
    return published


def _dtype_of(published: Published) -> str:
    """The dtype that a config.json names, if it is one in which weights are written."""
    name = published.values.get("dtype") or published.values.get("torch_dtype")
    return name if name in ("float32", "bfloat16", "float16") else "float32"


def _plan(folder: Path, head: Header, published: Published, dtype: str) -> list[_Leaf]:
    """What becomes of each leaf."""
    leaves = {dotted(name): name for name in head.leaves if name.startswith(_PARAMS)}
    shapes = {short: head.leaves[name].shape for short, name in leaves.items()}
    plan: list[_Leaf] = []
    for rule in published.names.rules:
        for short, tensors in leaves_of(rule, shapes).items():
            entry = entry_of(folder, leaves[short], head.leaves[leaves[short]], dtype)
            stacked = rule.of_layers and short == rule.stacked
            shape = entry.shape[1:] if stacked else entry.shape
            shape = shape[::-1] if rule.transform == "transpose" else shape
            of_leaf = tuple(Entry(name, shape, entry.dtype, list) for name in tensors)
            plan.append(_Leaf(entry, of_leaf, rule.transform, stacked))
    if unknown := leaves.keys() - {leaf.entry.name for leaf in plan}:
        raise CheckpointError(
            f"The checkpoint {folder} has {min(unknown)}, which a {published.family} as {published.folder} has it does "
            "not; give the folder that its model came from with --source."
        )
    return plan


def _write(out: Path, plan: Sequence[_Leaf], limit: int, overwrite: bool) -> list[Path]:
    shards = list(shards_of([tensor for leaf in plan for tensor in leaf.tensors], limit))
    n = len(shards)
    files = [out / (f"model-{i:05}-of-{n:05}.safetensors" if n > 1 else "model.safetensors") for i in range(1, n + 1)]
    written = [*files, out / "model.safetensors.index.json"] if n > 1 else files
    check_alone(out, written, overwrite)
    with ExitStack() as opened:
        places: dict[str, tuple[IO[bytes], int]] = {}
        for file, shard in zip(files, shards, strict=True):
            head, begins = head_of(shard, {"format": "pt"})
            handle = opened.enter_context(opened.enter_context(unfinished_file(file)).open("wb"))
            handle.write(head)
            places |= {name: (handle, begin) for name, begin in begins.items()}
        for leaf in plan:
            _write_leaf(leaf, places)
    if n > 1:
        index: dict[str, Json] = {
            "metadata": {"total_size": sum(tensor.nbytes for shard in shards for tensor in shard)},
            "weight_map": {t.name: file.name for file, shard in zip(files, shards, strict=True) for t in shard},
        }
        with unfinished_file(written[-1]) as unfinished:
            unfinished.write_text(json.dumps(index, indent=2) + "\n")
    return written


def _write_leaf(leaf: _Leaf, places: dict[str, tuple[IO[bytes], int]]) -> None:
    """Reads a leaf and writes its tensors, each into its place."""
    turned = leaf.transform != "same"
    blocks = leaf.entry.blocks()
    if leaf.stacked:
        layer = 0
        for block in blocks:
            for row in block:
                _put(row, leaf.transform, *places[leaf.tensors[layer].name])
                layer += 1
            del block  # before the next one is read
        return
    (tensor,) = leaf.tensors
    handle, begin = places[tensor.name]
    if turned:
        _put(leaf.entry.read(), leaf.transform, handle, begin)
        return
    for block in blocks:
        _put(block, leaf.transform, handle, begin)
        begin += block.nbytes
        del block  # before the next one is read


def _put(x: np.ndarray, transform: Transform, handle: IO[bytes], at: int) -> None:
    """Writes an array as its tensor, some rows at a time."""
    x = TRANSFORMS[transform].into_file(x)
    handle.seek(at)
    step = max(1, (_AT_ONCE if transform == "same" else _TURNED_AT_ONCE) // max(1, x[:1].size)) if x.ndim else 1
    for row in range(0, len(x), step) if x.ndim else [...]:
        handle.write(as_bytes(x[row if row is ... else slice(row, row + step)]))


def _copy(source: Path, out: Path) -> list[Path]:
    """Copies what lies beside the weights."""
    copied = sorted({file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()})
    for file in copied:
        shutil.copyfile(file, out / file.name)
    return [out / file.name for file in copied]
