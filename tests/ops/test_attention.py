"""Every path of attention against the formula: values, gradients, log-sum-exps; what is refused; what it costs."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.errors import ModelError
from jzero.jaxpr.devices import SHAPES_ALONE, Target, traced_for
from jzero.ops import attend, attention, attention_with_lse

B, T, H, WIDTH = 2, 70, 4, 16
SEGMENTS = jnp.sort(jax.random.randint(jax.random.key(7), (B, T), 1, 5), axis=1)
IN_DOCUMENT = jnp.stack([jnp.arange(T) - jnp.argmax(row[:, None] == row[None], axis=0) for row in SEGMENTS])

CASES = {
    "all": {},
    "causal": {"causal": True},
    "grouped": {"causal": True, "n_kv": 2},
    "one key head": {"n_kv": 1, "scale": 0.3},
    "window": {"causal": True, "window": 9},
    "window both ways": {"window": 20},
    "packed": {"causal": True, "segment_ids": SEGMENTS},
    "packed, positions": {"causal": True, "segment_ids": SEGMENTS, "positions": IN_DOCUMENT, "window": 8, "n_kv": 2},
    "soft cap": {"causal": True, "softcap": 0.7},
    "bias": {"bias": (1, H, T, T), "causal": True},
    "bias of rows": {"bias": (B, 1, 1, T), "softcap": 2.0, "n_kv": 2},
    "other keys": {"n_keys": 37},
    "cache": {"n_keys": 90, "causal": True, "positions": (jnp.arange(20, 20 + T)[None], jnp.arange(90)[None])},
    "one query": {"n_queries": 1, "n_keys": 90, "causal": True, "positions": (jnp.array([[40]]), jnp.arange(90)[None])},
    "some see nothing": {"segment_ids": (SEGMENTS, SEGMENTS + 2)},
}


def formula(
    q, k, v, bias=None, *, causal=False, segment_ids=None, positions=None, window=None, scale=None, softcap=None
):
    """Attention as papers write it, with a loop over the heads."""
    pair = lambda x: x if isinstance(x, tuple) else (x, x)
    q_at, k_at = (jnp.arange(q.shape[1])[None], jnp.arange(k.shape[1])[None]) if positions is None else pair(positions)
    away = q_at[:, :, None] - k_at[:, None, :]
    seen = jnp.ones_like(away, bool)
    if causal:
        seen &= away >= 0
    if window is not None:
        seen &= abs(away) < window
    if segment_ids is not None:
        q_in, k_in = pair(segment_ids)
        seen = seen & (q_in[:, :, None] == k_in[:, None, :])
    outs, sums = [], []
    for h in range(q.shape[2]):
        shared = h // (q.shape[2] // k.shape[2])
        scores = jnp.einsum("btd,bsd->bts", q[:, :, h], k[:, :, shared], precision="highest")
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        if bias is not None:
            scores = scores + jnp.broadcast_to(bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))[:, h]
        exponentials = jnp.where(seen, jnp.exp(scores), 0)
        total = exponentials.sum(axis=-1, keepdims=True)
        weights = exponentials / jnp.where(total == 0, 1, total)
        outs.append(jnp.einsum("bts,bsd->btd", weights, v[:, :, shared], precision="highest"))
        sums.append(jnp.log(total[..., 0]))
    return jnp.stack(outs, axis=2), jnp.stack(sums, axis=2)


def arrays(case, dtype=jnp.float32):
    case = dict(CASES[case])
    n_queries, n_keys = case.pop("n_queries", T), case.pop("n_keys", T)
    n_kv, bias = case.pop("n_kv", H), case.pop("bias", None)
    keys = jax.random.split(jax.random.key(0), 5)
    normal = lambda key, *shape: jax.random.normal(key, shape, jnp.float32).astype(dtype)
    q = normal(keys[0], B, n_queries, H, WIDTH)
    k, v = (normal(key, B, n_keys, n_kv, WIDTH) for key in keys[1:3])
    weights = normal(keys[3], B, n_queries, H, WIDTH)
    return (q, k, v, None if bias is None else normal(keys[4], *bias)), weights, case


def value_and_grads(fn, operands, weights):
    def loss(operands):
        out, lse = fn(*operands)
        lse = jnp.where(jnp.isfinite(lse), lse, 0)
        return (out * weights).astype(jnp.float32).sum() + jnp.sin(lse).sum(), (out, lse)

    grads, (out, lse) = jax.jit(jax.grad(loss, has_aux=True))(operands)
    return [out, lse, *jax.tree.leaves(grads)]


def ours(implementation, settings):
    return lambda q, k, v, bias: attention_with_lse(q, k, v, bias=bias, implementation=implementation, **settings)


@pytest.mark.parametrize("implementation", ["blockwise", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_formula(case, implementation, monkeypatch):
    monkeypatch.setattr(attend, "BLOCK", 32)
    operands, weights, settings = arrays(case)
    got = value_and_grads(ours(implementation, settings), operands, weights)
    want = value_and_grads(functools.partial(formula, **settings), operands, weights)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6 * max(1, float(jnp.abs(other).max())))


@pytest.mark.parametrize("case", ["grouped", "packed", "soft cap"])
def test_sixteen_bits_are_rounded_but_no_more(case, monkeypatch):
    monkeypatch.setattr(attend, "BLOCK", 32)
    operands, weights, settings = arrays(case, jnp.bfloat16)
    got = value_and_grads(ours("blockwise", settings), operands, weights)
    wide = lambda x: x.astype(jnp.float32)
    want = value_and_grads(functools.partial(formula, **settings), jax.tree.map(wide, operands), wide(weights))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(wide(one), other, rtol=0, atol=2**-6 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("case", ["all", "causal", "packed"])
def test_the_pallas_kernel_is_the_formula_too(case):
    operands, weights, settings = arrays(case)
    settings = {name: x[:, :64] if name == "segment_ids" else x for name, x in settings.items()}
    q, k, v = (x[:, :64] for x in operands[:3])

    def run(fn):
        return jax.grad(lambda q, k, v: (fn(q, k, v) * weights[:, :64]).sum(), argnums=(0, 1, 2))(q, k, v)

    got = run(lambda q, k, v: attention(q, k, v, implementation="pallas", **settings))
    want = run(lambda q, k, v: formula(q, k, v, **settings)[0])
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("implementation", ["blockwise", "plain", "pallas"])
def test_other_documents_of_a_row_do_not_move_by_a_bit(implementation, monkeypatch):
    monkeypatch.setattr(attend, "BLOCK", 16)
    (q, k, v, _), _, _ = arrays("causal")
    q, k, v, segments = q[:, :64], k[:, :64], v[:, :64], SEGMENTS[:, :64]
    run = jax.jit(lambda *x: attention(*x, causal=True, segment_ids=segments, implementation=implementation))
    disturbed = jnp.where((segments == 2)[:, :, None, None], 100.0, 1.0)
    before, after = run(q, k, v), run(q * disturbed, k * disturbed, v * disturbed)
    same = np.asarray(segments) != 2
    np.testing.assert_array_equal(np.asarray(before)[same], np.asarray(after)[same])
    assert not np.array_equal(before, after)


def test_dropped_weights_are_dropped_in_the_backward_pass_too(monkeypatch):
    monkeypatch.setattr(attend, "BLOCK", 16)
    (q, k, _, _), _, _ = arrays("causal")
    n = 48
    q, k, key = q[:1, :n], k[:1, :n], jax.random.key(3)
    run = lambda q, k, v: attention(q, k, v, causal=True, dropout=0.4, dropout_key=key)
    identity = jnp.broadcast_to(jnp.eye(n)[None, :, None], (1, n, H, n))
    dropped = run(q, k, identity).transpose(0, 2, 1, 3)  # the weights themselves
    whole = attention(q, k, identity, causal=True).transpose(0, 2, 1, 3)
    kept = jnp.where(dropped > 0, 1 / 0.6, 0)
    np.testing.assert_allclose(dropped, whole * kept, rtol=1e-5, atol=1e-7)
    seen = np.tril(np.ones((n, n), bool))
    assert abs(float((dropped > 0)[..., seen].mean()) - 0.6) < 0.03

    def by_hand(q, k, v):
        scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, k) * WIDTH**-0.5, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores) * kept, v)

    v = jax.random.normal(jax.random.key(4), (1, n, H, 5))
    grads = [jax.grad(lambda *x, fn=fn: jnp.sin(fn(*x)).sum(), argnums=(0, 1, 2))(q, k, v) for fn in (run, by_hand)]
    for one, other in zip(*grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_memory_grows_with_the_row_and_not_with_its_square():
    def temporary(n_tokens):
        x = jax.ShapeDtypeStruct((1, n_tokens, 8, 64), jnp.float32)
        loss = lambda q, k, v: attention(q, k, v, causal=True, implementation="blockwise").sum()
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporary(2048), temporary(32768)
    assert long < 16.5 * short
    assert long < 0.05 * 8 * 32768**2 * 4  # all scores at once


def test_what_cannot_be_is_said():
    (q, k, v, _), _, _ = arrays("all")
    refused = {
        "no implementation 'flash'": lambda: attention(q, k, v, implementation="flash"),
        r"multiple of those of k": lambda: attention(q, k[:, :, :3], v[:, :, :3]),
        "one floating dtype": lambda: attention(q, k.astype(jnp.bfloat16), v),
        "do not belong together": lambda: attention(q, k[:, :8], v),
        r"needs positions=\(": lambda: attention(q, k[:, :8], v[:, :8], causal=True),
        "window must be a positive": lambda: attention(q, k, v, window=0),
        "softcap must be": lambda: attention(q, k, v, softcap=0.0),
        "dropout must be a rate": lambda: attention(q, k, v, dropout=1.0, dropout_key=jax.random.key(0)),
        "does not broadcast to": lambda: attention(q, k, v, bias=jnp.zeros((3, T))),
        r"segment_ids of the keys must be integers of shape \(2, 8\)": lambda: attention(
            q, k[:, :8], v[:, :8], segment_ids=SEGMENTS
        ),
        "'cudnn'.*this program is for cpu": lambda: attention(q, k, v, implementation="cudnn"),
        "'pallas'.*the same segment_ids": lambda: attention(
            *(x[:, :64] for x in (q, k, v)),
            segment_ids=(SEGMENTS[:, :64], SEGMENTS[:, :64] + 1),
            implementation="pallas",
        ),
        "'pallas'.*multiples of 64": lambda: attention(q, k, v, implementation="pallas"),
    }
    for words, call in refused.items():
        with pytest.raises(ModelError, match=words):
            call()


@pytest.mark.parametrize(
    ("settings", "dtype", "words"),
    [
        ({"causal": True}, jnp.bfloat16, "attention runs in cuDNN"),
        ({"causal": True}, jnp.float32, "takes float16 and bfloat16"),
        ({"segment_ids": SEGMENTS}, jnp.bfloat16, "no packed rows"),
        ({"softcap": 30.0}, jnp.bfloat16, "no soft cap"),
        ({"window": 4}, jnp.bfloat16, "window is for causal"),
        ({"bias": jnp.zeros((1, 1, T))}, jnp.bfloat16, "a row for every query"),
    ],
)
def test_on_a_gpu_the_log_says_which_path_runs_and_why(settings, dtype, words, caplog, monkeypatch):
    monkeypatch.setattr(attend, "_said", set())
    operands = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), arrays("all")[0][:3])
    with caplog.at_level(logging.INFO, "jzero"), traced_for(Target("gpu", (9, 0))):
        for _ in range(2):
            jax.eval_shape(lambda *x: attention(*x, **settings), *operands)
    assert len(caplog.messages) == 1
    assert words in caplog.text


def test_nothing_is_said_where_only_shapes_are_wanted(caplog, monkeypatch):
    monkeypatch.setattr(attend, "_said", set())
    x = jax.ShapeDtypeStruct((1, 8, 2, 8), jnp.bfloat16)
    with caplog.at_level(logging.INFO, "jzero"), traced_for(SHAPES_ALONE):
        jax.eval_shape(attention, x, x, x)
    assert not caplog.messages
