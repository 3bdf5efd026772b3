"""`jzero.cross_entropy` by chunks has the value and the gradients of a loss of all logits, whatever is asked of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jzero
from jzero.errors import ModelError
from jzero.jaxpr import every_equation
from jzero.ops import chunked_loss

VOCAB, D = 50, 16
TARGETS = np.random.default_rng(0).integers(0, VOCAB, (3, 37), dtype=np.int32)


def arrays(n=TARGETS.shape, d=D, vocab=VOCAB, layout="vd", dtype=jnp.float32, seed=0):
    """Hidden states, output layer and bias."""
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.standard_normal(shape), dtype)
    head = normal(vocab, d)
    return normal(*n, d), head if layout == "vd" else head.T, normal(vocab)


def plain(hidden, head, bias, targets, *, layout="vd", weights=1.0, z_loss=0.0, softcap=None):
    """The mean loss in float32, as a textbook has it: all logits, `optax`, JAX's own differentiation."""
    hidden, head = hidden.astype(jnp.float32), head.astype(jnp.float32)
    logits = hidden @ (head.T if layout == "vd" else head)
    logits = logits if bias is None else logits + bias.astype(jnp.float32)
    logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    losses += z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2
    weights = jnp.broadcast_to(jnp.asarray(weights, jnp.float32), losses.shape)
    return (losses * weights).sum() / weights.sum()


def chunked(hidden, head, bias, targets, *, layout="vd", **options):
    mean = jzero.cross_entropy(hidden, head, targets, head_layout=layout, bias=bias, **options)
    return mean.total / mean.weight


def results(fn, given, *args, **options):
    """Loss and gradients by hidden states, output layer and bias, where there is one."""
    moving = [i for i, x in enumerate(given) if x is not None]
    return jax.jit(jax.value_and_grad(lambda *xs: fn(*xs, *args, **options), moving))(*given)


def assert_equal(actual, expected, rtol=2e-6, atol=1e-6):
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    for ours, theirs in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"mask": TARGETS % 3 > 0}, {"weights": TARGETS % 3 > 0}),
        ({"mask": TARGETS / 50}, {"weights": TARGETS / 50}),
        ({"ignore_index": 7}, {"weights": TARGETS != 7}),
        ({"mask": TARGETS % 3, "ignore_index": 7}, {"weights": TARGETS % 3 * (TARGETS != 7)}),
        ({"z_loss": 0.02, "softcap": 3.0}, {"z_loss": 0.02, "softcap": 3.0}),
    ],
    ids=["plain", "mask", "weights", "ignored", "both", "z-loss and cap"],
)
def test_value_and_gradients_are_those_of_all_logits(layout, options, reference):
    given = arrays(layout=layout)
    options = {key: jnp.asarray(x) if key == "mask" else x for key, x in options.items()}
    expected = results(plain, given, TARGETS, layout=layout, **reference)
    for chunk in (16, 500):  # seven uneven chunks; all at once
        assert_equal(results(chunked, given, TARGETS, layout=layout, chunk_tokens=chunk, **options), expected)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    vocab=st.integers(1, 60),
    chunk=st.integers(1, 45),
    layout=st.sampled_from(["vd", "dv"]),
    biased=st.booleans(),
    z_loss=st.sampled_from([0.0, 0.1]),
    softcap=st.sampled_from([None, 2.0]),
)
def test_any_shape_and_chunk(n, d, vocab, chunk, layout, biased, z_loss, softcap):
    hidden, head, bias = arrays((n,), d, vocab, layout, seed=n)
    given, targets = (hidden, head, bias if biased else None), np.arange(n, dtype=np.int32) * 7 % vocab
    options = {"layout": layout, "z_loss": z_loss, "softcap": softcap}
    actual = results(chunked, given, targets, chunk_tokens=chunk, **options)
    assert_equal(actual, results(plain, given, targets, **options))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_lose_no_more_than_the_rounding_of_the_gradients(dtype):
    given = arrays(dtype=dtype)
    value, grads = results(chunked, given, TARGETS, chunk_tokens=16)
    expected, exact = results(plain, [x.astype(jnp.float32) for x in given], TARGETS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for ours, theirs in zip(grads, exact, strict=True):
        assert ours.dtype == dtype
        # Half a unit in the last place, and what the parts that were split off lose.
        np.testing.assert_allclose(
            ours.astype(jnp.float32), theirs, rtol=0.502 * float(jnp.finfo(dtype).eps), atol=1e-6
        )


def test_a_wider_head_widens_the_logits():
    hidden, head, bias = arrays()
    hidden = hidden.astype(jnp.bfloat16)
    value, grads = results(chunked, (hidden, head, bias), TARGETS, chunk_tokens=16)
    expected, exact = results(plain, (hidden.astype(jnp.float32), head, bias), TARGETS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32, jnp.float32]
    np.testing.assert_allclose(grads[1], exact[1], rtol=2e-6, atol=1e-6)


def test_the_weight_is_the_number_of_tokens_that_count():
    hidden, head, _ = arrays()
    assert float(jzero.cross_entropy(hidden, head, TARGETS).weight) == TARGETS.size
    mask = jnp.asarray(TARGETS % 2 == 0)
    mean = jzero.cross_entropy(hidden, head, TARGETS, mask=mask, ignore_index=4, chunk_tokens=16)
    assert float(mean.weight) == np.sum((TARGETS % 2 == 0) & (TARGETS != 4))


def test_a_mask_that_is_a_weight_has_a_gradient():
    hidden, head, _ = arrays()
    total = lambda mask: jzero.cross_entropy(hidden, head, TARGETS, mask=mask, chunk_tokens=16).total
    losses = jax.grad(total)(jnp.ones(TARGETS.shape))
    np.testing.assert_allclose(losses.mean(), plain(hidden, head, None, TARGETS), rtol=1e-6)


@pytest.mark.parametrize("target", [-1, VOCAB, 2**31 - 1])
def test_a_target_outside_of_the_vocabulary_counts_as_a_logit_of_zero(target):
    hidden, head, _ = arrays()
    log_sum = jax.nn.logsumexp(hidden @ head.T, axis=-1).mean()
    for chunk in (16, 500):
        value = chunked(hidden, head, None, np.full_like(TARGETS, target), chunk_tokens=chunk)
        np.testing.assert_allclose(value, log_sum, rtol=1e-6)


def test_targets_of_few_bits_are_not_wrapped():
    hidden, head, _ = arrays(vocab=300)
    value = chunked(hidden, head, None, TARGETS.astype(np.uint8), chunk_tokens=16)
    np.testing.assert_allclose(value, plain(hidden, head, None, TARGETS), rtol=1e-6)


def test_large_logits_stay_finite():
    hidden, head, _ = (x.round() for x in arrays())  # whole numbers, so that products are exact
    given = 1000 * hidden, head, None
    actual = results(chunked, given, TARGETS, chunk_tokens=16)
    assert_equal(actual, results(plain, given, TARGETS), atol=1e-4)


def test_what_fits_is_one_chunk_and_what_does_not_is_cut_evenly(monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * VOCAB * 10)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK", 8)

    def tokens_at_a_time(n):
        hidden, head, _ = arrays((n,))
        program = jax.make_jaxpr(lambda *xs: chunked(*xs, None, np.zeros(n, np.int32)))(hidden, head)
        return {
            v.aval.shape[0] for eqn, *_ in every_equation(program) for v in eqn.outvars if v.aval.shape[1:] == (VOCAB,)
        }

    assert tokens_at_a_time(10) == {10}
    assert tokens_at_a_time(11) == {8}


BAD = {
    "head_layout must be": {"head_layout": "dd"},
    "head has shape": {"head_layout": "dv"},
    "head is int32": {"head": jnp.zeros((VOCAB, D), jnp.int32)},
    "hidden is int32": {"hidden": jnp.zeros((*TARGETS.shape, D), jnp.int32)},
    "hidden is float32 and head bfloat16": {"head": jnp.zeros((VOCAB, D), jnp.bfloat16)},
    "targets are float32": {"targets": jnp.zeros(TARGETS.shape)},
    "hidden has shape .* and targets": {"targets": jnp.zeros((3, 36), jnp.int32)},
    "hidden has shape .* at least one token": {"hidden": jnp.zeros((0, D)), "targets": jnp.zeros(0, jnp.int32)},
    "bias is float32 of shape": {"bias": jnp.zeros(D)},
    "bias is int32": {"bias": jnp.zeros(VOCAB, jnp.int32)},
    "mask is float32 of shape": {"mask": jnp.zeros(TARGETS.shape[:1])},
    "mask is complex64": {"mask": jnp.zeros(TARGETS.shape, jnp.complex64)},
    "ignore_index must be": {"ignore_index": 1.5},
    "z_loss must be": {"z_loss": -1.0},
    "softcap must be": {"softcap": 0.0},
    "chunk_tokens must be": {"chunk_tokens": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_what_does_not_fit_is_refused_in_a_sentence(message):
    hidden, head, _ = arrays()
    given = {"hidden": hidden, "head": head, "targets": TARGETS, **BAD[message]}
    with pytest.raises(ModelError, match=rf"^cross_entropy: {message}.*\.$"):
        jzero.cross_entropy(**given)
