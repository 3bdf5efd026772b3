"""Plain weights as they are found: a file of any of the formats, or a folder with one, or with an index of several."""

import warnings
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from jzero.base.files import Text, inside, parse_json, read_json, why
from jzero.base.types import Json
from jzero.checkpoint.format import safetensors
from jzero.checkpoint.format.npz import open_npz
from jzero.checkpoint.format.safetensors import Entry
from jzero.checkpoint.format.torch_file import open_torch
from jzero.errors import CheckpointError

_INDEX = ".index.json"
_MOST_INDEX = 2**27
_IN_A_FOLDER = ("model.safetensors", "model.npz", "pytorch_model.bin")
"""What is looked for in a folder, in this order; each but the npz may have an index."""


class Weights(NamedTuple):
    """Arrays that are still to be read.

    Attributes:
        entries: by name.
        model: the `model` part of a run file, if `export` wrote it beside them.
    """

    entries: dict[str, Entry]
    model: dict[str, Json] | None = None


class _Facts(BaseModel):
    """What `export` writes into a file's metadata, as far as it is of use here."""

    model: dict[Text, Json] | None = None


class _Index(BaseModel):
    """Hugging Face's index: which file of its folder holds an array."""

    weight_map: dict[Text, Text]


def open_weights(path: Path) -> Weights:
    """The arrays that a file or folder holds, by name.

    Raises:
        CheckpointError: there are none, or it is not clear which are meant.
    """
    path = _in_folder(path) if path.is_dir() else path
    return _open_index(path) if path.name.endswith(_INDEX) else _open_file(path)


def _in_folder(folder: Path) -> Path:
    for name in _IN_A_FOLDER:
        whole, index = folder / name, folder / f"{name}{_INDEX}"
        if index.exists():
            if whole.exists() and set(_read_index(index).values()) != {name}:
                raise CheckpointError(
                    f"{folder} holds {name} and {index.name}, which lists other files; give the path of the one "
                    "that is meant, or remove the other."
                )
            return index
        if whole.exists():
            return whole
    names = [name for whole in _IN_A_FOLDER for name in (f"{whole}{_INDEX}", whole) if name != f"model.npz{_INDEX}"]
    raise CheckpointError(f"{folder} holds none of {', '.join(names)}.")


def _open_file(file: Path) -> Weights:
    if file.suffix == ".npz":
        return Weights(open_npz(file))
    if file.suffix in {".bin", ".pt", ".pth"}:
        return Weights(open_torch(file))
    return Weights(safetensors.open_file(file), _model(file))


def _read_index(index: Path) -> dict[str, str]:
    try:
        files = read_json(index, _Index, _MOST_INDEX).weight_map
        if not files:
            raise ValueError("`weight_map` lists nothing")
        for file in set(files.values()):
            if inside(index.parent, file).name.endswith(_INDEX):
                raise ValueError(f"it names {file!r}, which is an index itself")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index} cannot be read as an index of files: {why(error)}.") from error
    return files


def _open_index(index: Path) -> Weights:
    """Each array from the file that the index names, whatever else the files hold."""
    files = _read_index(index)
    parts = {file: _open_file(inside(index.parent, file)) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in parts[file].entries:
            raise CheckpointError(f"{index} says that {name or repr(name)} is in {file}, which does not hold it.")
    if unlisted := [name for part in parts.values() for name in part.entries if name not in files]:
        more = f" and {len(unlisted) - 1} more" if len(unlisted) > 1 else ""
        warnings.warn(f"{index} does not list {unlisted[0]}{more} of its files: not read.", stacklevel=2)
    return Weights({name: parts[file].entries[name] for name, file in files.items()}, next(iter(parts.values())).model)


def _model(file: Path) -> dict[str, Json] | None:
    text = safetensors.read_metadata(file).get("jzero", "{}")
    try:
        return parse_json(text, _Facts).model
    except ValueError:
        return None
