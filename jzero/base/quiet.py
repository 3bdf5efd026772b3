"""A quiet start on machines without an NVIDIA GPU that have JAX's CUDA plugin installed, as `jzero[plan]` asks for.

JAX loads some of the plugin's libraries when it is imported, and every installed plugin when it starts. Without a
driver the CUDA plugin fails its version check with a traceback, and its libraries print "Could not find cuda drivers"
straight to the process's stderr, below any log level. Neither tells the user anything: the plugin is there to compile,
not to run. Where a GPU is visible nothing is touched.

What `import jax` itself prints is held back only if jzero is imported before it: no package can silence one that was
there first. What JAX would print when it starts is held back in either order.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
_NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")  # bare metal, containers, WSL: the files JAX looks for
_DRIVER_MESSAGES = (b"Could not find cuda drivers", b"before absl::InitializeLog()")


def quiet_start() -> None:
    """Keeps the CUDA plugin silent on a machine without an NVIDIA GPU; imports neither it nor JAX.

    Example:
        >>> quiet_start()
    """
    if any(map(os.path.exists, _NVIDIA_DEVICES)):
        return
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    if not any(isinstance(finder, _QuietFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _QuietFinder())
    for name in CUDA_PLUGINS:
        if name in sys.modules:
            _silence(sys.modules[name])


class _QuietFinder(MetaPathFinder):
    """Finds JAX and its CUDA plugins where they are, and holds back what they say while they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax" and fullname not in CUDA_PLUGINS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_quietly(module: ModuleType) -> None:
            with _without_driver_messages():
                load(module)
            if fullname in CUDA_PLUGINS:
                _silence(module)

        spec.loader.exec_module = load_quietly
        return spec


def _silence(plugin: ModuleType) -> None:
    """Silences the function with which JAX starts a plugin."""
    initialize: Callable[[], None] = plugin.initialize

    def initialize_silently() -> None:
        with _without_driver_messages():
            initialize()

    plugin.__dict__["initialize"] = initialize_silently


@contextlib.contextmanager
def _without_driver_messages() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, then lets everything but the known driver messages through."""
    import tempfile  # not for a start that loads no JAX

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
