r"""Plain weights become a checkpoint: those that `export` wrote, or another program's by a map of names.

A map of names is a list of rules, the first that fits a name wins:
`{"from": "transformer.h.(\d+).attn.weight", "to": "h.\1.attn.kernel", "transpose": true}`. `from` is a regular
expression for the whole name; a rule without `to` leaves the array out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict

from jzero import models
from jzero.base.files import Text, in_form, read_json, why
from jzero.base.types import Json, Params
from jzero.base.version import VERSION
from jzero.checkpoint.convert.exporting import dotted
from jzero.checkpoint.convert.weights import open_weights
from jzero.checkpoint.format.header import Leaf
from jzero.checkpoint.format.leaves import by_name, narrowed
from jzero.checkpoint.format.safetensors import Entry
from jzero.checkpoint.run.loading import PathLike
from jzero.checkpoint.run.saving import save
from jzero.checkpoint.run.selection import Selection, match
from jzero.errors import CheckpointError
from jzero.flax.adapter import adapt

Rule: TypeAlias = Mapping[str, Json]
"""One rule of a map of names."""

_MOST_RULES = 2**24
"""Bytes of a file of rules."""


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
    entries, exported = open_weights(Path(weights))
    chosen = dict(model or exported or {})
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
    read = _reader(weights, open_weights(Path(weights)).entries, wanted, rules)
    return jax.tree.unflatten(jax.tree.structure(params), [read(name) for name in wanted])


def read_rules(file: PathLike) -> list[Rule]:
    """Reads a map of names from a JSON file.

    Raises:
        CheckpointError: it is none.
    """
    try:
        return _checked(read_json(file, list[Json], _MOST_RULES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as a map of names: {why(error)}.") from error


class _Rule(BaseModel):
    """What a rule may say."""

    model_config = ConfigDict(extra="forbid")
    pattern: Text = Field(alias="from")
    to: Text | None = None
    transpose: Annotated[bool, Strict()] = False


def _checked(rules: Sequence[Rule]) -> list[Rule]:
    for rule in rules:
        try:
            re.compile(in_form(rule, _Rule).pattern)
        except (ValueError, re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{rule!r} is no rule with the keys from, to and transpose: {why(error)}") from None
    return list(rules)


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

    def read(name: str) -> np.ndarray:
        try:
            return narrowed(given[name].read(), wanted[name].dtype)
        except Exception as error:  # each format's library has its own
            raise CheckpointError(f"{given[name].name} of {weights} cannot be read: {why(error)}.") from error

    return read


def _renamed(entries: Mapping[str, Entry], rules: Sequence[Rule]) -> dict[str, Entry]:
    renamed: dict[str, Entry] = {}
    try:
        rules = _checked(rules)
    except ValueError as error:
        raise CheckpointError(f"The map of names cannot be used: {error}.") from error
    for name, entry in entries.items():
        for rule in rules:
            if found := re.fullmatch(rule["from"], name):
                if rule.get("to") is None:
                    break
                try:
                    to = found.expand(rule["to"])
                except (re.error, IndexError) as error:
                    raise CheckpointError(f"The rule {rule!r} of the map of names cannot be used: {error}.") from error
                if to in renamed:
                    raise CheckpointError(f"The map of names makes {to!r} of both {renamed[to].name!r} and {name!r}.")
                renamed[to] = _transposed(entry) if rule.get("transpose") else entry
                break
        else:
            raise CheckpointError(f"No rule of the map of names fits {name!r}; one without `to` leaves an array out.")
    return renamed


def _transposed(entry: Entry) -> Entry:
    return Entry(entry.name, entry.shape[::-1], entry.dtype, lambda: [np.ascontiguousarray(entry.read().T)])
