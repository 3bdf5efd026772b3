"""Every family against what transformers and torch computed: logits, loss and gradients, in one form or another."""

import numpy as np
import pytest

from jzero.models import from_hf
from tests.models.hf.common import GOLDEN, Form, check_step, logits_of, read_alone

FORMS = {
    "llama": Form(True, 8, 3),
    "llama-tied": Form(False, 1, 3),
    "mistral": Form(False, 8, 0),
    "qwen2": Form(True, 1, 3),
    "qwen3": Form(True, 8, 0),
    "gemma2": Form(True, 1, 3),
    "gemma3": Form(False, 8, 3),
    "olmo2": Form(True, 1, 0),
    "gpt2": Form(False, 8, 3),
    "gpt2-untied": Form(True, 1, 0),
    "bert": Form(False, 8, 0),
    "roberta": Form(True, 1, 3),
}
"""Each family once, every pair of scanned or not, one or eight devices, and stage 0 or 3 in several of them."""


def expected(name):
    data = np.load(GOLDEN / name / "expected.npz")
    part = lambda prefix: {key.removeprefix(prefix): data[key] for key in data.files if key.startswith(prefix)}
    return part("batch/"), data["logits"], float(data["loss"]), part("grad/")


@pytest.mark.parametrize("name", FORMS)
def test_loss_and_gradients_are_those_of_transformers(name):
    batch, _, loss, grads = expected(name)
    check_step(GOLDEN / name, FORMS[name], batch, loss, grads)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "gpt2", "bert", "roberta"])
def test_logits_are_those_of_transformers(name):
    batch, logits, _, _ = expected(name)
    model = from_hf(GOLDEN / name, scan_layers=name == "gemma2")
    params = read_alone(model)
    np.testing.assert_allclose(logits_of(model, params, batch), logits, atol=1e-5, rtol=1e-5)
