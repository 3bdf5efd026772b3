"""The whole matrix against transformers and torch themselves, and back: what jzero exports, transformers opens."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from jzero.checkpoint.convert.hf_export import export_hf
from jzero.models import from_hf
from jzero.models.hf.published import open_published
from tests.golden.hf import make
from tests.models.hf.common import GOLDEN, Form, by_path, check_step, engine_of, logits_of, read_alone
from tests.models.hf.test_curve import losses_of
from tests.models.hf.test_published import PUBLISHED

torch = pytest.importorskip("torch", reason="needs pip install jzero[hf-test]")
transformers = pytest.importorskip("transformers", reason="needs pip install jzero[hf-test]")

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),  # whatever these two warn of
]

UNTIED_ONLY = ("bert", "roberta")
MODELS = [(name, tied) for name in make.CASES for tied in (False, True) if not (tied and name in UNTIED_ONLY)]
FORMS = [Form(scan, devices, stage) for scan in (True, False) for devices in (1, 8) for stage in (0, 3)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """Makes a checkpoint in float32 and evaluates it, once each."""
    made = {}

    def of(name, tied):
        if (name, tied) not in made:
            folder = tmp_path_factory.mktemp(name)
            changes = {} if name in UNTIED_ONLY else {"tie_word_embeddings": tied}
            model = make.model_of(name, **changes)
            batch = make.batch_of(name)
            model.save_pretrained(folder)
            made[name, tied] = (folder, batch, *make.evaluate(model, batch))
        return made[name, tied]

    return of


def auto(name):
    kind = "SequenceClassification" if name in UNTIED_ONLY else "CausalLM"
    return getattr(transformers, f"AutoModelFor{kind}")


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("name", "tied"), MODELS)
def test_loss_and_gradients(oracle, name, tied, form):
    folder, batch, _, loss, grads = oracle(name, tied)
    check_step(folder, form, batch, loss, grads)


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize(("name", "tied"), MODELS)
def test_logits(oracle, name, tied, scan):
    folder, batch, logits, _, _ = oracle(name, tied)
    model = from_hf(folder, scan_layers=scan)
    np.testing.assert_allclose(logits_of(model, read_alone(model), batch), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", [Form(True, 8, 3), Form(False, 1, 0)], ids=str)
@pytest.mark.parametrize(("name", "tied"), MODELS)
def test_what_is_exported_is_the_model_that_came_in(oracle, name, tied, form, tmp_path):
    folder, batch, logits, loss, _ = oracle(name, tied)
    engine = engine_of(from_hf(folder, scan_layers=form.scan), batch, form)
    engine.save_checkpoint(tmp_path / "saved")
    export_hf(tmp_path / "saved", tmp_path / "out", source=folder, max_shard_bytes=40_000)
    back = auto(name).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    found, found_loss, _ = make.evaluate(back, batch)
    np.testing.assert_array_equal(found, logits)
    assert found_loss == loss
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


def test_fine_tuning_is_that_of_torch():
    expected = make.curve(GOLDEN / "llama")
    for form in (Form(True, 8, 3), Form(False, 1, 0)):
        np.testing.assert_allclose(losses_of(GOLDEN / "llama", form), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_torch_s_own_files_are_read(oracle, name, tmp_path):
    folder, *_ = oracle(name, False)
    shutil.copy(folder / "config.json", tmp_path)
    model = auto(name).from_pretrained(folder)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    read, same = (by_path(read_alone(from_hf(place))) for place in (tmp_path, folder))
    for leaf, x in same.items():
        np.testing.assert_array_equal(read[leaf], x)


@pytest.mark.parametrize("known", PUBLISHED, ids=[known["source"].split()[2] for known in PUBLISHED])
def test_a_configuration_that_version_5_writes_says_what_version_4_said(tmp_path, known):
    for version in ("4", "5"):
        (tmp_path / version).mkdir()
    (tmp_path / "4" / "config.json").write_text(json.dumps(known["config"]))
    transformers.AutoConfig.from_pretrained(tmp_path / "4").save_pretrained(tmp_path / "5")
    older, newer = (open_published(tmp_path / version, {}) for version in ("4", "5"))
    assert older.config == newer.config


def test_golden_files_are_those_of_these_versions(tmp_path):
    """Made anew they are the same up to rounding, wherever they are made with the versions that they name."""
    versions = json.loads((GOLDEN / "versions.json").read_text())
    if versions != {"torch": torch.__version__, "transformers": transformers.__version__}:
        pytest.skip(f"golden files were made with {versions}")
    make.write("qwen3", tmp_path)
    new, old = (np.load(folder / "expected.npz") for folder in (tmp_path, GOLDEN / "qwen3"))
    for key in old.files:
        np.testing.assert_allclose(new[key], old[key], rtol=1e-4, atol=1e-6)


def test_neither_is_imported_by_jzero():
    code = "import sys, jzero.models.families, jzero.cli.export; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
