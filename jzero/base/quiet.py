"""A quiet start on machines without an NVIDIA GPU that have JAX's CUDA plugin installed, as `jzero[plan]` asks for.

JAX loads every installed plugin when it starts. Without a driver the CUDA plugin fails its version check with a
traceback, and its libraries print "Could not find cuda drivers" straight to the process's stderr, below any log level.
Neither tells the user anything: the plugin is there to compile, not to run. Where a GPU is visible nothing is touched.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
_NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")  # bare metal, containers, WSL: the files JAX looks for
_DRIVER_MESSAGES = (b"Could not find cuda drivers", b"before absl::InitializeLog()")


def quiet_start() -> None:
    """Keeps the CUDA plugin silent on a machine without an NVIDIA GPU; call before jax is imported."""
    if any(map(os.path.exists, _NVIDIA_DEVICES)):
        return
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    for name in CUDA_PLUGINS:
        with contextlib.suppress(ImportError):
            with _without_driver_messages():  # importing jax itself loads some of the plugin's libraries
                plugin: Any = importlib.import_module(name)
            plugin.initialize = _silenced(plugin.initialize)


def _silenced(initialize: Callable[[], None]) -> Callable[[], None]:
    def initialize_silently() -> None:
        with _without_driver_messages():
            initialize()

    return initialize_silently


@contextlib.contextmanager
def _without_driver_messages() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, then lets everything but the known driver messages through."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back:
        stderr_copy = os.dup(2)
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            held_back.seek(0)
            for line in held_back:
                if not any(message in line for message in _DRIVER_MESSAGES):
                    os.write(2, line)
