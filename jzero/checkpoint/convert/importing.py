r"""Plain weights become a checkpoint: those that `export` wrote, or another program's by a map of names.

A map of names is a list of rules, the first that fits a name wins:
`{"from": "transformer.h.(\d+).attn.weight", "to": "h.\1.attn.kernel", "transpose": true}`. `from` is a regular
expression for the whole name; a rule without `to` leaves the array out.
"""

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jzero import models
from jzero.base.types import Json, Params
from jzero.base.version import VERSION
from jzero.checkpoint.convert.exporting import dotted
from jzero.checkpoint.format import safetensors
from jzero.checkpoint.format.header import Leaf
from jzero.checkpoint.format.leaves import by_name
from jzero.checkpoint.format.safetensors import Entry
from jzero.checkpoint.run.loading import PathLike
from jzero.checkpoint.run.saving import save
from jzero.checkpoint.run.selection import Selection, match
from jzero.errors import CheckpointError
from jzero.flax.adapter import adapt

Rule: TypeAlias = Mapping[str, Json]
"""One rule of a map of names."""

_RULE_KEYS = {"from", "to", "transpose"}


def import_weights(
    weights: PathLike,
    out: PathLike,
    *,
    model: Mapping[str, Json] | None = None,
    rules: Sequence[Rule] | None = None,
) -> int:
    """Writes a checkpoint of parameters and model state, to be loaded with `only=("params/*", "model_state/*")`.

    Args:
        weights: a safetensors or npz file, a torch state dict (with PyTorch installed), or a folder with one of them or
            with Hugging Face's index file.
        out: the checkpoint to write.
        model: the `model` part of a run file; that which the weights were exported with by default.
        rules: what other programs call the leaves; see above. Without rules the names must be the model's own.

    Returns:
        How many parameters were read.

    Raises:
        CheckpointError: the weights cannot be read or do not fit the model, or `out` cannot be written.
        ConfigError: there is no such model.
    """
    entries, facts = _open(Path(weights))
    chosen = dict(model or facts.get("model") or {})
    if not chosen:
        raise CheckpointError(f"{weights} does not say which model it is of; give its run file.")
    wanted = _abstract(chosen)
    read = _reader(weights, entries, {dotted(name): x for name, x in wanted.items()}, rules)
    cpu = jax.local_devices(backend="cpu")[0]
    leaves = {name: jax.device_put(read(dotted(name)), cpu) for name in wanted}
    metadata = {"step": 0, "n_params": _n_params(wanted), "versions": {"jzero": VERSION}}
    metadata["extra"] = {"model": chosen, "weights": str(weights)}
    save(out, leaves, metadata).wait()
    return metadata["n_params"]


def read_params(weights: PathLike, params: Params, rules: Sequence[Rule] | None = None) -> Params:
    """Reads plain weights into the tree of any model's parameters, for `jzero.initialize(params=...)`.

    Args:
        weights: as for `import_weights`.
        params: the tree to fill: `engine.params`, or the `jax.eval_shape` of a model's initialisation.
        rules: what other programs call the leaves; without rules the names must be dotted paths in the tree.

    Returns:
        numpy arrays, of the shapes and dtypes of `params`.

    Raises:
        CheckpointError: the weights cannot be read or do not fit.
    """
    wanted = {name.replace("/", "."): x for name, x in by_name(params).items()}
    read = _reader(weights, _open(Path(weights))[0], wanted, rules)
    return jax.tree.unflatten(jax.tree.structure(params), [read(name) for name in wanted])


def read_rules(file: PathLike) -> list[Rule]:
    """Reads a map of names from a JSON file.

    Raises:
        CheckpointError: it is none.
    """
    try:
        rules = json.loads(Path(file).read_text())
        for rule in rules:
            if not isinstance(rule, dict) or "from" not in rule or rule.keys() - _RULE_KEYS:
                raise ValueError(f"{rule!r} is no rule; its keys are from, to and transpose")
            re.compile(rule["from"])
    except (OSError, ValueError, TypeError, re.error) as error:
        raise CheckpointError(f"{file} cannot be read as a map of names: {error}.") from error
    return rules


def _abstract(model: Mapping[str, Json]) -> dict[str, jax.ShapeDtypeStruct]:
    """The leaves of a model that jzero ships, by path."""
    built = models.build(model)
    params, model_state = jax.eval_shape(adapt(built.factory, built.loss_fn).init, jax.random.key(0), _batch(model))
    return by_name({"params": params, "model_state": model_state})


def _batch(model: Mapping[str, Json]) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch from which a model can be made: of tokens or of images."""
    side, channels = model.get("image_size", 224), model.get("n_channels", 3)
    return {
        "tokens": jax.ShapeDtypeStruct((1, 2), jnp.int32),
        "image": jax.ShapeDtypeStruct((1, side, side, channels), jnp.float32),
        "label": jax.ShapeDtypeStruct((1,), jnp.int32),
    }


def _n_params(leaves: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    return sum(x.size for name, x in leaves.items() if name.startswith("params/"))


def _reader(
    weights: PathLike,
    entries: Mapping[str, Entry],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    rules: Sequence[Rule] | None,
) -> Callable[[str], np.ndarray]:
    """Checks that names and shapes fit exactly; returns what reads one of the wanted arrays."""
    given = entries if rules is None else _renamed(entries, rules)
    described = {name: Leaf(tuple(x.shape), str(x.dtype)) for name, x in wanted.items()}
    match(weights, {name: Leaf(entry.shape, entry.dtype) for name, entry in given.items()}, described, Selection())
    return lambda name: given[name].read().astype(wanted[name].dtype, copy=False)


def _open(path: Path) -> tuple[dict[str, Entry], dict[str, Json]]:
    """The arrays that a file or folder holds, by name, and what it says of itself."""
    if path.is_dir():
        names = (
            *("model.safetensors.index.json", "model.safetensors", "model.npz"),
            *("pytorch_model.bin.index.json", "pytorch_model.bin"),
        )
        found = next((path / name for name in names if (path / name).is_file()), None)
        if found is None:
            raise CheckpointError(f"{path} holds none of {', '.join(names)}.")
        path = found
    if path.name.endswith(".index.json"):
        try:
            files = sorted(set(json.loads(path.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read as an index of files: {error}.") from error
        parts = [_open(path.with_name(file)) for file in files]
        return {name: entry for part, _ in parts for name, entry in part.items()}, parts[0][1] if parts else {}
    if path.suffix == ".npz":
        return _open_npz(path), {}
    if path.suffix in {".bin", ".pt", ".pth"}:
        return _open_torch(path), {}
    return safetensors.open_file(path), _facts(path)


def _facts(file: Path) -> dict[str, Json]:
    """What `export` wrote into it; nothing if something else did."""
    try:
        facts = json.loads(safetensors.read_metadata(file).get("jzero", "{}"))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _open_npz(file: Path) -> dict[str, Entry]:
    try:
        with file.open("rb") as opened:
            archive = np.load(opened)
            heads = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{file} cannot be read as npz: {str(error).rstrip('.')}.") from error
    return {name: Entry(name, x.shape, x.dtype.name, lambda x=x: [x]) for name, x in heads.items()}


def _open_torch(file: Path) -> dict[str, Entry]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CheckpointError(
            f"{file} is a torch state dict, which needs PyTorch: pip install 'jzero[torch]'."
        ) from None
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(f"{file} cannot be read as a torch state dict: {error}.") from error

    def entry(name: str, tensor: "torch.Tensor") -> Entry:
        dtype = str(tensor.dtype).removeprefix("torch.")
        bits = {"bfloat16": torch.int16}.get(dtype)
        read = lambda: tensor.numpy() if bits is None else tensor.view(bits).numpy().view(jnp.bfloat16)
        return Entry(name, tuple(tensor.shape), dtype, lambda: [read()])

    return {name: entry(name, tensor) for name, tensor in tensors.items()}


def _renamed(entries: Mapping[str, Entry], rules: Sequence[Rule]) -> dict[str, Entry]:
    renamed: dict[str, Entry] = {}
    for name, entry in entries.items():
        for rule in rules:
            if found := re.fullmatch(rule["from"], name):
                if rule.get("to") is not None:
                    to = found.expand(rule["to"])
                    renamed[to] = _transposed(entry, to) if rule.get("transpose") else entry._replace(name=to)
                break
        else:
            raise CheckpointError(f"No rule of the map of names fits {name!r}; one without `to` leaves an array out.")
    return renamed


def _transposed(entry: Entry, name: str) -> Entry:
    return Entry(name, entry.shape[::-1], entry.dtype, lambda: [np.ascontiguousarray(entry.read().T)])
