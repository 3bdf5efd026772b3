"""Layouts against JAX's own account of which device holds what."""

import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jzero
from jzero.errors import ConfigError
from jzero.explain.layouts import Layouts, LeafLayout, layouts_html, parameter_layouts


class Net(nnx.Module):
    def __init__(self, rngs):
        self.odd = nnx.Linear(131, 257, rngs=rngs)  # nothing divides it by 4
        self.out = nnx.Linear(257, 64, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.out(self.odd(x))


@pytest.fixture(scope="module", params=[{}, {"mics_shard_size": 4}], ids=["8 shards", "2 x 4"])
def functional(request):
    config = {
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 300, **request.param},
    }
    return jzero.functional(
        model=Net,
        loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        config=jzero.Config.load(config).resolve(world=8),
        sample_batch=jax.ShapeDtypeStruct((8, 131), jnp.float32),
        mesh=jzero.make_mesh(jax.devices(), replica=8 // request.param.get("mics_shard_size", 8)),
    )


def test_parts_are_where_jax_puts_them(functional):
    found = parameter_layouts(functional)
    stored = jax.tree.leaves(functional.state.params)
    assert [leaf.name for leaf in found.leaves] == ["odd.bias", "odd.kernel", "out.kernel"]
    assert {leaf.dim is None for leaf in found.leaves} == {True, False}
    devices = list(functional.spec.mesh.devices.flat)
    for leaf, x in zip(found.leaves, stored, strict=True):
        where = x.sharding.devices_indices_map(x.shape)
        for i, device in enumerate(devices):
            # JAX's slices of the padded array, cut to the true shape.
            true = [range(n)[s] for n, s in zip(leaf.shape, where[device], strict=True)]
            assert [range(n)[s] for n, s in zip(leaf.shape, found.part(leaf, i), strict=True)] == true


def test_there_is_no_ninth_device(functional):
    found = parameter_layouts(functional)
    with pytest.raises(ConfigError, match="device 8: the mesh has devices 0 to 7"):
        found.part(found.leaves[0], 8)


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.words.append(data)


def test_the_table_reads_without_a_script_and_escapes_names():
    evil = "</script><img src=x onerror=alert(1)>"
    leaves = tuple(LeafLayout(f"h.{i}.{evil}", (i + 1, 8), "float32", 1, 8, i % 2 == 0) for i in range(40))
    page = _Tags(Layouts({"replica": 1, "shard": 8, "tensor": 1}, leaves)._repr_html_())
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert page.tags.count("tr") == 13  # a heading and the largest twelve
    assert f"h.39.{evil}" in page.words
    assert "dimension 1 over 8 devices" in page.words
    assert "The 12 largest of 40 parameters on a mesh of replica 1 x shard 8 x tensor 1" in page.words


def test_equal_layouts_are_one_choice():
    mesh = {"replica": 1, "shard": 8, "tensor": 1}
    some = [Layouts(mesh, (LeafLayout("w", (8,), "bfloat16", dim, 8, False),)) for dim in (None, 0, 0)]
    page = layouts_html(dict(zip(("stage 0", "stage 2", "stage 3"), some, strict=True)))
    assert re.findall(r'"label":"([^"]*)"', page) == ["stage 0", "stage 2; stage 3"]
