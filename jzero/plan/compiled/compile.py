"""Compiles the training step for GPUs that are not there: the very program a cluster would run, from shapes alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from jzero.base.types import Batch, LossFn, Mask
from jzero.config import Config
from jzero.config.config import Source
from jzero.errors import JzeroError
from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.memory_use import read_memory_use
from jzero.plan.compiled.program import Program, read_program
from jzero.plan.compiled.topology import compile_only, gpu_mesh
from jzero.plan.garbage import collection_put_off
from jzero.plan.hardware.cluster import Cluster
from jzero.plan.training import Training
from jzero.sharding.mesh import mesh_for, n_data_shards
from jzero.zero.shapes import Trainable, adapted, model_width


def compile_step(
    *,
    model: object,
    loss_fn: LossFn,
    config: Source,
    sample_batch: Batch,
    gpu: str = "h100-80g",
    n_gpus: int = 8,
    gpus_per_node: int = 8,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Mask | None = None,
    memory_use: bool = False,
) -> Program:
    """Compiles one training step for `n_gpus` GPUs without having any; nothing is allocated.

    Args:
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`; its world size is `n_gpus`.
        sample_batch: a pytree of arrays or `jax.ShapeDtypeStruct`s with leading dimension `train_batch_size`.
        gpu: a name from `jzero.plan.GPUS`, or the path of a file like theirs, see `jzero.plan.gpu_figures`.
        n_gpus: the number of GPUs.
        gpus_per_node: how many of them share a host.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.
        memory_use: also reads how much memory is taken when, `Program.memory_use`, which the compiler writes to files.

    Returns:
        The compiled program: `hlo_text` (scheduled), `memory` (bytes per device) and `collectives`.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    training = Training(model, loss_fn, Config.load(config), sample_batch, optimizer, trainable)
    return compile_training(training, Cluster(gpu, n_gpus, gpus_per_node), memory_use=memory_use)


def compile_training(training: Training, cluster: Cluster, *, memory_use: bool) -> Program:
    """The same for what is trained on a cluster, see `compile_step`."""
    devices = gpu_mesh(cluster.gpu, cluster.n_gpus, cluster.gpus_per_node).devices
    mesh = mesh_for(training.config, devices.flatten().tolist())
    lowered = _lowered(mesh, training)
    if not memory_use:
        return read_program(_compiled(lowered, {}), mesh)
    with TemporaryDirectory(prefix="jzero-") as folder:
        program = read_program(_compiled(lowered, {"xla_dump_to": folder}), mesh)
        return replace(program, memory_use=read_memory_use(Path(folder), parse_module(program.hlo_text)))


@collection_put_off()
def _lowered(mesh: Mesh, training: Training) -> jax.stages.Lowered:
    """The traced step, as the compiler takes it."""
    model = adapted(training.model, training.loss_fn, training.config)
    width = lambda: model_width(model, training.sample_batch)
    config = training.config.resolve(world=n_data_shards(mesh), hidden_size=width)
    fns = replace(training, model=model, config=config).functional(mesh)
    try:
        return fns.program.lower(fns.state, fns.batch)
    except RuntimeError as error:
        if "Unknown backend" not in str(error):
            raise
        raise JzeroError(
            "the model calls a function of the host (jax.pure_callback or the like), which JAX lowers only where such "
            "a GPU is at hand; plan by the closed form (--closed-form), or on a machine that has one."
        ) from error


def _compiled(lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> jax.stages.Compiled:
    """Compiles, if need be with kernels of libraries for all products.

    The tiles that XLA chooses without autotuning do not fit every product, such as one of 6304 rows.
    """
    try:
        return compile_only(lowered, options)
    except jax.errors.JaxRuntimeError as error:
        if "tile sizes" not in str(error):
            raise
        return compile_only(lowered, {**options, "xla_gpu_enable_triton_gemm": False})
