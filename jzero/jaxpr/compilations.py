"""What JAX tells of its compiler: how long it took, what came from its cache on disk, and what it compiled for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax
from jax.experimental.compilation_cache import compilation_cache

_COMPILED = "/jax/core/compile/backend_compile_duration"
_ASKED_CACHE = "/jax/compilation_cache/compile_requests_use_cache"
_FROM_CACHE = "/jax/compilation_cache/cache_hits"


@dataclass
class Compilations:
    """Programs that were compiled while `watch` looked on.

    Attributes:
        n_programs: how many, those from the cache included.
        seconds: that took, in all.
        n_asked: those that were looked for in JAX's cache on disk.
        n_from_cache: those that were there.
    """

    n_programs: int = 0
    seconds: float = 0.0
    n_asked: int = 0
    n_from_cache: int = 0


class _Listeners(threading.local):
    """JAX's events arrive in the thread that compiles; it has listeners for the whole process only, which stay."""

    def __init__(self) -> None:
        self.watching: list[Compilations] = []

    def on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            for compilations in self.watching:
                compilations.n_programs += 1
                compilations.seconds += duration_secs

    def on_event(self, event: str, **_: str | int) -> None:
        for compilations in self.watching:
            compilations.n_asked += event == _ASKED_CACHE and bool(cache_folder())
            compilations.n_from_cache += event == _FROM_CACHE


_listeners = _Listeners()
jax.monitoring.register_event_duration_secs_listener(_listeners.on_duration)
jax.monitoring.register_event_listener(_listeners.on_event)


@contextmanager
def watch() -> Iterator[Compilations]:
    """Counts what this thread compiles inside.

    Example:
        >>> with watch() as compilations:
        ...     _ = jax.jit(lambda x: x + 3)(1)
        >>> compilations.n_programs, compilations.n_from_cache
        (1, 0)
    """
    compilations = Compilations()
    _listeners.watching.append(compilations)
    try:
        yield compilations
    finally:
        _listeners.watching.remove(compilations)


def settings() -> dict[str, object]:
    """JAX's settings as they hold here, with the mesh that `jax.set_mesh` names; a program belongs to some of them."""
    values: dict[str, object] = {name: getattr(jax.config, name, None) for name in jax.config.values}
    return values | {"jax.set_mesh": jax.sharding.get_abstract_mesh()}


def cache_folder() -> str | None:
    """Where JAX keeps compiled programs, if anywhere."""
    return getattr(jax.config, "jax_compilation_cache_dir", None)


def keep_compiled_in(folder: str | None) -> None:
    """Lets JAX keep compiled programs in a folder and find them there; None ends it."""
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()  # JAX asks once a process whether there is a folder
