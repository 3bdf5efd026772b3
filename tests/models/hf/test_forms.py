"""What no checkpoint shows: packed rows, dropout, recomputing, and rows that are too long."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ModelError
from jzero.models import from_hf, next_token_loss
from tests.models.common import value_and_grad, with_params
from tests.models.hf.common import GOLDEN, Form, engine_of, read_alone
from tests.models.hf.test_golden import expected


@pytest.mark.parametrize(("name", "scan"), [("gemma3", True), ("qwen3", False), ("gpt2", True)])
def test_packed_documents_do_not_see_each_other(name, scan):
    model = from_hf(GOLDEN / name, scan_layers=scan)
    module, params = model.factory(nnx.Rngs(0)), read_alone(model)
    compiled = jax.jit(lambda params, tokens, about: with_params(module, params)(tokens, **about))
    run = lambda tokens, **about: compiled(params, tokens, about)
    first, second = (np.random.default_rng(n).integers(0, 64, (2, n), dtype=np.int32) for n in (6, 7))
    packed = run(
        np.concatenate([first, second], axis=1),
        segment_ids=np.repeat(np.array([[1, 2]] * 2, np.int32), [6, 7], axis=1),
        positions=np.tile(np.concatenate([np.arange(6), np.arange(7)]).astype(np.int32), (2, 1)),
    )
    np.testing.assert_allclose(packed, np.concatenate([run(first), run(second)], axis=1), atol=2e-5)


@pytest.mark.parametrize(("scan", "remat"), [(True, True), (False, "dots_saveable")])
def test_recomputed_layers_compute_the_same(scan, remat):
    batch, _, loss, _ = expected("gemma3")
    once, again = (from_hf(GOLDEN / "gemma3", scan_layers=scan, remat=r) for r in (False, remat))
    (value, grads), (other, other_grads) = (
        value_and_grad(m.factory(nnx.Rngs(0)), next_token_loss, read_alone(m), batch) for m in (once, again)
    )
    assert abs(float(value) - loss) < 1e-5
    assert float(other) == pytest.approx(float(value), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), other_grads, grads)


@pytest.mark.parametrize(("name", "scan"), [("gpt2", True), ("bert", False)])
def test_dropout_runs_in_training_alone(tmp_path, name, scan):
    shutil.copytree(GOLDEN / name, tmp_path / name)
    values = json.loads((tmp_path / name / "config.json").read_text())
    rates = "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"
    (tmp_path / name / "config.json").write_text(json.dumps({**values, **{r: 0.3 for r in rates if r in values}}))
    batch, _, loss, _ = expected(name)
    engine = engine_of(from_hf(tmp_path / name, scan_layers=scan), batch, Form(scan, 8, 3))
    assert abs(float(engine.eval_batch(batch)["loss"]) - loss) < 1e-5
    trained = float(engine.train_batch(batch)["loss"])
    assert abs(trained - loss) > 1e-3
    assert np.isfinite(trained)


@pytest.mark.parametrize("name", ["llama", "gpt2", "roberta"])
def test_a_longer_row_is_a_sentence(name):
    model = from_hf(GOLDEN / name)
    with pytest.raises(ModelError, match=r"the batch has 65 tokens a row; the model is made for 6[24]\."):
        nnx.eval_shape(lambda: model.factory(nnx.Rngs(0))(np.zeros((1, 65), np.int32)))
