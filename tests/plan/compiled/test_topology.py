"""Compile-only meshes: the clusters they stand for, the sentences of their errors, and a quiet start."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jzero.errors import ConfigError, JzeroError
from jzero.plan.compiled import topology
from jzero.plan.compiled.topology import compile_only, gpu_mesh
from jzero.plan.hardware.figures import GPUS, gpu_figures


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu_figures(gpu).target])
def test_every_description_compiles_a_program(gpu):
    mesh = gpu_mesh(gpu, n_gpus=2)
    x = jax.ShapeDtypeStruct((256, 64), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("shard")))
    compiled = compile_only(jax.jit(lambda x: (x @ x.T).sum(dtype=jnp.float32)).lower(x))
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes == 128 * 64 * 2
    family = gpu.partition("-")[0].upper()
    assert family in mesh.devices.flat[0].device_kind.upper().replace(" ", "")


def test_scalars_reduce_over_several_nodes():
    mesh = gpu_mesh("h100-80g", n_gpus=64)
    x = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "shard"), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    assert "all-reduce" in (compile_only(jax.jit(total).lower(x)).as_text() or "")


def test_gpus_fill_nodes():
    mesh = gpu_mesh("h100-80g", n_gpus=16, gpus_per_node=4)
    assert dict(mesh.shape) == {"replica": 1, "shard": 16, "tensor": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert [device.process_index for device in mesh.devices.flat] == [i // 4 for i in range(16)]
    assert gpu_mesh("h100-80g", n_gpus=3, gpus_per_node=8).size == 3


def test_unknown_gpu_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"No GPU is named 'h1000'; known are a100-40g, a100-80g, b200"):
        gpu_mesh("h1000")


@pytest.mark.parametrize(
    ("n_gpus", "gpus_per_node", "text"), [(12, 8, "does not fill nodes of 8 GPUs"), (0, 8, "must both be at least 1")]
)
def test_numbers_that_make_no_cluster(n_gpus, gpus_per_node, text):
    with pytest.raises(ConfigError, match=text):
        gpu_mesh("h200", n_gpus, gpus_per_node)


def test_missing_plugin_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JzeroError, match=r"pip install 'jzero\[plan\]'"):
        gpu_mesh()


def test_plugin_that_jax_did_not_load(monkeypatch):
    def not_loaded(*args, **kwargs):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topology.topologies, "get_topology_desc", not_loaded)
    with pytest.raises(JzeroError, match="did not load its CUDA plugin"):
        gpu_mesh()


def test_jax_s_cache_on_disk_is_passed_over(tmp_path):
    cache = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in cache}
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(gpu_mesh(n_gpus=8), PartitionSpec()))
    compilation_cache.reset_cache()
    try:
        for name, value in cache.items():
            jax.config.update(name, value)
        compile_only(jax.jit(lambda x: x + 1).lower(x))
        assert not list(tmp_path.iterdir())
        jax.jit(lambda x: x + 2)(np.ones(3)).block_until_ready()
        assert list(tmp_path.iterdir())  # so the cache was in use
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
