"""Where a run keeps its compiled programs, so that the next attempt of it need not compile them again."""

import logging
from pathlib import Path

from jax.sharding import Mesh

from jzero.config import ResolvedConfig
from jzero.jaxpr.compilations import cache_folder, keep_compiled_in
from jzero.sharding.mesh import platform

FOLDER = "compile_cache"
"""Inside of `output_dir`, unless `jzero.compile_cache` names another."""

_log = logging.getLogger("jzero")


def use_compile_cache(config: ResolvedConfig, output_dir: Path, mesh: Mesh) -> None:
    """Lets JAX keep compiled programs on disk, for this process, as `jzero.compile_cache` says.

    A folder that the user has given to JAX itself, as `JAX_COMPILATION_CACHE_DIR`, holds. By default nothing is kept
    for CPUs, which compile in seconds.

    Args:
        config: a resolved configuration.
        output_dir: of the run.
        mesh: the devices that programs are compiled for.
    """
    setting, on_cpu = config.jzero.compile_cache, platform(mesh) == "cpu"
    if cache_folder() or setting is False or (on_cpu and setting is None):
        return
    zero = config.zero_optimization
    if on_cpu and (zero.offloads_optimizer or zero.offloads_params):
        # One that was loaded from disk writes to host memory that it has given back.
        _log.warning("jzero.compile_cache: programs for CPUs with offloading cannot be kept on disk; none are.")
        return
    folder = output_dir / FOLDER if setting is None else Path(str(setting))
    keep_compiled_in(str(folder.absolute()))
    _log.info("compiled programs are kept in %s", folder)
