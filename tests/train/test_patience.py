"""Early stopping, and the arguments that say when the loop does what."""

import io
import json

import jax
import pytest
from flax import nnx
from rich.console import Console

from jzero.config import load_run
from jzero.errors import ConfigError
from jzero.sharding.mesh import make_mesh
from jzero.train.patience import Patience
from jzero.train.trainer import language_model, prepare, train

RUN = {
    "model": {"family": "gpt", "vocab_size": 256, "seq_len": 8, "d_model": 8, "n_layer": 1, "n_head": 2},
    "data": {"source": "text", "files": ["text.txt"], "seq_len": 8, "validation_share": 0.2},
    "training_arguments": {
        "max_steps": 9,
        "learning_rate": 0.0,
        "per_device_train_batch_size": 4,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "early_stopping_patience": 2,
        "early_stopping_threshold": 1e-6,
        "logging_first_step": True,
        "report_to": ["tensorboard"],
    },
    "deepspeed": {},
}


def test_a_threshold_and_a_checkpoint_count():
    patience = Patience(limit=2, threshold=0.1)
    assert [patience.heard(loss) for loss in (3.0, 2.95, 2.5, 2.45)] == [False, False, False, False]
    assert Patience.of({"best": patience.best, "waited": patience.waited}, 2, 0.1).heard(2.41)
    assert not Patience.of(None, 2, 0.1).heard(9.0)
    assert not Patience().heard(float("nan"))


def test_a_run_that_learns_nothing_ends_early(tmp_path):
    (tmp_path / "text.txt").write_text("0123456789" * 20)  # 20 windows: two steps of 8 rows are an epoch
    arguments = {**RUN["training_arguments"], "output_dir": str(tmp_path / "out")}
    (tmp_path / "run.json").write_text(json.dumps({**RUN, "training_arguments": arguments}))
    run = prepare(load_run(tmp_path / "run.json"), base=tmp_path, mesh=make_mesh(jax.devices()[:2]))
    console = Console(file=io.StringIO(), width=200)
    result = train(run, console=console)
    assert (result.step, result.interrupted) == (6, False)  # evaluated after 2, 4 and 6
    text = console.file.getvalue()
    assert "The validation loss has not fallen for 2 evaluations: the run ends here." in text
    assert "step     1  loss" in text
    assert "step     3  loss" not in text
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-6"]
    assert len(list((tmp_path / "out" / "tensorboard").iterdir())) == 1
    assert train(run, resume="auto").step == 6  # started again, it ends where it had ended


def test_rematerialisation_is_asked_for_by_its_other_name():
    def model(**changes):
        model = {**RUN["model"], **changes} if "family" not in changes else changes
        return language_model(load_run({**RUN, "model": model, "training_arguments": {"gradient_checkpointing": True}}))

    assert model().factory(nnx.Rngs(0)).config.remat is True
    assert model(remat=False).factory(nnx.Rngs(0)).config.remat is False
    with pytest.raises(ConfigError, match="a model of the family 'lstm' has no blocks to rematerialise"):
        model(family="lstm", vocab_size=256, d_model=8, n_layer=1)
