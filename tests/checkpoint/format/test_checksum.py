"""The checksum sees every element and its position, and nothing else: no layout, no padding."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jzero.checkpoint.format.checksum import finish, of_array, start
from jzero.sharding.mesh import make_mesh

DTYPES = ["float32", "bfloat16", "float16", "int8", "uint32", "bool", "complex64", "float8_e4m3fn"]


def checksum(x: jax.Array, shape: tuple[int, ...] | None = None) -> str:
    return finish(start({"x": x}, {"x": x.shape if shape is None else shape}))["x"]


@pytest.fixture(params=["host", "devices"])
def where(request, monkeypatch):
    """Has the host take the sums, as for simulated devices, or the devices, as for accelerators."""
    if request.param == "devices":
        monkeypatch.setattr("jzero.checkpoint.format.checksum.on_cpus", lambda leaves: False)


def mixed(h: int) -> int:
    """MurmurHash3's finalizer, in Python's integers."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = ((h ^ h >> shift) * factor) % 2**32
    return h


def expected(x: np.ndarray) -> str:
    """The definition, element by element."""
    words = x.ravel().view(np.uint8).reshape(x.size, x.itemsize)
    parts = [words[:, i : i + 4] for i in range(0, x.itemsize, 4)]
    total = 0
    for position in range(x.size):
        h = position * 0x9E3779B9 % 2**32
        for part in parts:
            h = mixed(h ^ int.from_bytes(part[position].tobytes(), "little"))
        total += h
    return f"{total % 2**32:08x}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_what_it_is_defined_to_be(where, dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)) * 100).astype(dtype)
    assert checksum(x) == of_array(np.asarray(x)) == expected(np.asarray(x))


def test_long_arrays_are_summed_in_blocks():
    x = jnp.arange(2**18 + 5, dtype=jnp.float32)
    assert of_array(np.asarray(x)) == checksum(x)


@settings(max_examples=20, deadline=None)
@given(x=hnp.arrays(np.float32, st.sampled_from([(4, 6), (24,), ()]), elements=st.floats(width=32)), data=st.data())
def test_any_damaged_element_changes_it(x, data):
    damaged = x.copy()
    bits = damaged.reshape(-1).view(np.uint32)
    bits[data.draw(st.integers(0, x.size - 1))] ^= np.uint32(data.draw(st.integers(1, 2**32 - 1)))
    assert checksum(jnp.asarray(damaged)) != checksum(jnp.asarray(x))


def test_arrays_alike_are_summed_together_and_apart(where):
    sharding = NamedSharding(make_mesh(), PartitionSpec("shard"))
    random = np.random.default_rng(0)
    values = {f"x{i}": random.standard_normal((16, 2), np.float32) for i in range(21)}
    arrays = {name: jax.device_put(x, sharding) for name, x in values.items()}
    texts = finish(start(arrays, {name: x.shape for name, x in arrays.items()}))
    assert texts == {name: expected(x) for name, x in values.items()}
    assert not start({}, {})


def test_swapped_elements_and_another_shape_change_it():
    assert checksum(jnp.array([1.0, 2.0])) != checksum(jnp.array([2.0, 1.0]))
    assert checksum(jnp.zeros(3)) != checksum(jnp.zeros(4))


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
@pytest.mark.parametrize(
    ("spec", "padded"),
    [
        (("shard",), (16, 6)),
        ((None, "shard"), (13, 8)),
        ((), (13, 6)),
        ((("replica", "shard"), None), (16, 6)),
        (("replica", "shard"), (14, 8)),
    ],
)
def test_layout_padding_and_memory_do_not_matter(where, memory, spec, padded):
    x = np.random.default_rng(1).standard_normal((13, 6), np.float32)
    filled = np.full(padded, 7, np.float32)  # padding need not be zero
    filled[:13, :6] = x
    sharding = NamedSharding(make_mesh(replica=2), PartitionSpec(*spec), memory_kind=memory)
    assert checksum(jax.device_put(filled, sharding), (13, 6)) == expected(x)
