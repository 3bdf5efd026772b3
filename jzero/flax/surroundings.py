"""What a model expects around it that is not there under jzero: a mesh to lay arrays out over, an axis that pmap names.

Both are looked into where JAX refuses the model, and only there. A layout changes no number, so it can be left out:
jzero decides where arrays lie. An axis by which models name the devices that share a batch stands for jzero's own.
"""

import logging
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import jax
from flax import nnx

from jzero.base.types import Batch, ModelState, Params, PyTree
from jzero.errors import JzeroError, ModelError
from jzero.flax.model import Model, Outcome
from jzero.jaxpr.axes import under_axis_names
from jzero.sharding.mesh import AXES, DATA_AXES, NO_AXES

BATCH_AXES = frozenset({"batch", "data", "device", "devices", "num_devices", "dp"})
"""How models written for `jax.pmap` call the devices that share a batch."""

PACKAGE = str(Path(__file__).parents[1])
"""The folder of jzero's own code."""

_MESH = re.compile(r"[Mm]esh context|context mesh|mesh axis|(in|of the|non-empty) mesh|mesh passed|Mesh\(|AxisType")
"""What only JAX's messages about meshes have, and not those of models that compute with meshes."""

Made = TypeVar("Made")
"""What running a model gives."""


def fitted(model: Model) -> Model:
    """The same model, which also runs where it names axes or layouts of a mesh that is not jzero's."""

    def alone(names: Collection[str]) -> Callable[..., tuple[Params, ModelState]]:
        """Making parameters as if one device had the whole batch."""
        run = model.init
        for name in sorted(names):
            run = _first(jax.vmap(run, in_axes=None, axis_size=1, axis_name=name))
        return run

    met_by_init: set[str] = set()
    met: set[str] = set()

    def init(key: jax.Array, batch: Batch) -> tuple[Params, ModelState]:
        return _bound(alone, met_by_init, BATCH_AXES | {*DATA_AXES}, lambda _: None, key, batch)

    def apply(params: Params, model_state: ModelState, batch: Batch, key: jax.Array, train: bool) -> Outcome:
        def run(params: Params, model_state: ModelState, batch: Batch, key: jax.Array) -> Outcome:
            return model.apply(params, model_state, batch, key, train)

        shared = lambda names: under_axis_names(run, names, DATA_AXES) if names else run
        return _bound(shared, met, BATCH_AXES, _say, params, model_state, batch, key)

    return model._replace(init=init, apply=apply)


def say_layouts(n_leaves: int) -> None:
    """Says that parameters bring layouts along that are not read."""
    if n_leaves:
        _say(
            f"{n_leaves} variables of the model name a layout of their own, which is left out: jzero decides by stage."
        )


def place_in(error: BaseException) -> str:
    """The innermost line of an error's traceback that is neither jzero's nor an installed package's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(PACKAGE)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "in an installed package"


def _bound(
    binding: Callable[[Collection[str]], Callable[..., Made]],
    met: set[str],
    known: Collection[str],
    say: Callable[[str], None],
    *args: PyTree,
) -> Made:
    """Runs a function with those axis names bound that it turns out to need.

    Args:
        binding: names -> the function with them bound.
        met: the names that were needed before; it grows.
        known: the names that can be.
        say: tells what was made of them, and of layouts.
        *args: what the function takes.
    """
    while True:
        try:
            with nnx.use_eager_sharding(False):
                return _outside_layouts(binding(met), say, *args)
        except NameError as error:
            name = _unbound_axis(error)
            if name is None or name in met:
                raise
            if name not in known:
                raise ModelError(
                    f"the loss names the axis {name!r} ({place_in(error)}), which nothing around it binds; if it is "
                    f'that of the devices that share the batch, call it "batch" or write {DATA_AXES}.'
                ) from error
            met.add(name)
            say(f"the axis {name!r} that the loss names stands for all devices that share the batch.")


def _outside_layouts(run: Callable[..., Made], say: Callable[[str], None], *args: PyTree) -> Made:
    """Runs a model as it is, or where it asks for layouts over a mesh that is not there, without them."""
    try:
        return run(*args)
    except (ValueError, RuntimeError, AssertionError) as error:
        if not _is_of_a_mesh(error):
            raise
        first, place = str(error).splitlines()[0], place_in(error)
        try:
            with jax.sharding.use_abstract_mesh(NO_AXES), _no_constraints():
                outcome = run(*args)
        except (ValueError, RuntimeError, AssertionError) as again:
            if not _is_of_a_mesh(again):
                raise
            raise ModelError(
                f"the loss lays arrays out over a mesh of its own ({place}: {first}); jzero's mesh has the axes "
                f"{', '.join(AXES)} and decides where arrays lie: do without out_sharding, shard_map and their like "
                "where `jax.sharding.get_abstract_mesh().empty`."
            ) from error
    say(f"the loss lays arrays out over a mesh of its own ({place}), which is left out: jzero decides where they lie.")
    return outcome


@contextmanager
def _no_constraints() -> Iterator[None]:
    """While a model is traced, constraints on layouts give back what they are given."""
    before = jax.lax.with_sharding_constraint, jax.sharding.reshard
    jax.lax.with_sharding_constraint = jax.sharding.reshard = lambda x, *_, **__: x
    try:
        yield
    finally:
        jax.lax.with_sharding_constraint, jax.sharding.reshard = before


def _is_of_a_mesh(error: Exception) -> bool:
    return not isinstance(error, JzeroError) and bool(_MESH.search(str(error)))


def _unbound_axis(error: NameError) -> str | None:
    found = re.search(r"unbound axis name: (\w+)", str(error))
    return found and found[1]


def _first(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    return lambda *args: jax.tree.map(lambda x: x[0], fn(*args))


@cache  # once, though a loss is traced several times
def _say(text: str) -> None:
    logging.getLogger("jzero").info("%s", text)
