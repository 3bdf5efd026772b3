"""Thirty steps of full fine-tuning: the losses are those of transformers with torch's AdamW."""

import json

import numpy as np

from jzero.models import from_hf
from tests.golden.hf.make import CURVE, batches
from tests.models.hf.common import GOLDEN, Form, engine_of


def losses_of(folder, form):
    adamw = {**CURVE, "betas": list(CURVE["betas"])}
    steps = [{"tokens": tokens} for tokens in batches()]
    model = from_hf(folder, scan_layers=form.scan)
    engine = engine_of(model, steps[0], form, optimizer={"type": "AdamW", "params": adamw})
    return [float(engine.train_batch(batch)["loss"]) for batch in steps]


def test_fine_tuning_is_that_of_torch():
    expected = json.loads((GOLDEN / "curve.json").read_text())
    assert expected[-1] < expected[0] - 1  # it learns
    np.testing.assert_allclose(losses_of(GOLDEN / "llama", Form(True, 8, 3)), expected, atol=1e-5, rtol=0)
