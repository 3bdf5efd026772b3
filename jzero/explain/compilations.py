"""Says when the step was compiled, how long that took, and why it was compiled again."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from jzero.base.types import PyTree
from jzero.jaxpr.compilations import Compilations, settings, watch
from jzero.sharding.placement import path_name

_log = logging.getLogger("jzero")


class StepCompilations:
    """Watches an engine's steps.

    The first step compiles, and the second may, since its state comes from a program and no longer from `init`; both
    are told to the log `jzero` as information. A later one is a warning, because it costs minutes for large models and
    somebody has caused it.

    Args:
        state: the abstract state that the step's program is made for.
    """

    def __init__(self, state: PyTree):
        self._expected = state
        self._settings: list[dict[str, object]] = []
        self._n_steps = 0

    @contextmanager
    def step(self, state: PyTree) -> Iterator[None]:
        """Watches one step from this state."""
        with watch() as compilations:
            yield
        self._n_steps += 1
        if not compilations.n_programs:
            return
        now = settings()
        if self._n_steps <= 2:
            _log.info("%s", _sentence(compilations))
        else:
            # None yet where another engine of the same functions has compiled them.
            usual = now if now in self._settings else next(iter(self._settings), now)
            why = why_compiled_again(self._expected, state, usual, now)
            _log.warning("%s again, at step %d of this engine: %s.", _sentence(compilations), self._n_steps, why)
        self._settings.append(now)


def _sentence(compilations: Compilations) -> str:
    """Such as "compiled the step in 31 s (cache miss)"."""
    asked, hits = compilations.n_asked, compilations.n_from_cache
    if not asked:
        cache = "no cache"
    elif not hits:
        cache = "cache miss"
    else:
        cache = "from the cache" if hits == asked else f"{hits} of {asked} programs from the cache"
    return f"compiled the step in {compilations.seconds:.3g} s ({cache})"


def why_compiled_again(expected: PyTree, given: PyTree, before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Finds what a step had to be compiled again for.

    Args:
        expected: the abstract state that its program was made for.
        given: the state that it was called with.
        before: JAX's settings when it was compiled first.
        now: those that hold now.

    Returns:
        A sentence without its full stop.

    Example:
        >>> why_compiled_again({}, {}, {"jax_enable_x64": False}, {"jax_enable_x64": True})
        'the setting jax_enable_x64 of JAX was False and is True'
    """
    for name in now:
        if name in before and before[name] != now[name]:
            return f"the setting {name} of JAX was {before[name]} and is {now[name]}"
    wanted = jax.tree_util.tree_leaves_with_path(expected)
    found = dict(jax.tree_util.tree_leaves_with_path(given))
    if len(wanted) != len(found):
        return f"the engine's state was replaced by one of {len(found)} arrays instead of {len(wanted)}"
    for path, like in wanted:
        if path not in found:
            return f"the engine's state was replaced by one without {path_name(path)}"
        if differences := _differences(like, found[path]):
            return f"{path_name(path)} of the engine's state was replaced by an array of {differences}"
    return "JAX no longer had its program"


def _differences(like: jax.ShapeDtypeStruct, x: jax.Array) -> str:
    pairs = {
        "shape": (x.shape, like.shape),
        "dtype": (x.dtype, like.dtype),
        "sharding": (x.sharding, like.sharding),
        "weak type": (x.weak_type, False),
    }
    return ", ".join(f"{name} {a} instead of {b}" for name, (a, b) in pairs.items() if a != b)
