"""`jzero.fit`: any iterable of batches, whose state lies in the checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

import jzero
from jzero.errors import ConfigError
from jzero.train.iterators import GivenFeed
from tests.helpers import mesh_of

BATCHES = [{"x": np.random.default_rng(i).standard_normal((4, 2), np.float32)} for i in range(5)]


class Stateful:
    """Like grain's: its state is where it is; `kind` names the methods, and what the state is."""

    def __init__(self, kind: str = "bytes"):
        self.at, self.read, self._kind = 0, 0, kind
        if kind == "json":
            self.state_dict, self.load_state_dict = (
                lambda: {"at": self.at},
                lambda state: setattr(self, "at", state["at"]),
            )
        elif kind == "bytes":
            self.get_state, self.set_state = (
                lambda: str(self.at).encode(),
                lambda state: setattr(self, "at", int(state)),
            )

    def __iter__(self):
        return self

    def __next__(self):
        self.at, self.read = self.at + 1, self.read + 1
        return BATCHES[(self.at - 1) % 5]


@pytest.fixture(scope="module")
def made():
    engine = jzero.initialize(
        model=lambda rngs: nnx.Linear(2, 1, rngs=rngs),
        loss_fn=lambda model, batch: ((model(batch["x"]) - 1) ** 2).mean(),
        config={"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
        sample_batch=BATCHES[0],
        mesh=mesh_of(2),
    )

    def fresh():
        engine.state = engine.functional.init(np.uint32(0))
        return engine

    return fresh


def losses(out: Path, name: str = "loss") -> dict[int, float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


@pytest.mark.parametrize("kind", ["bytes", "json", "none"])
def test_a_resumed_run_is_the_same_run(made, tmp_path, kind):
    out, arguments = tmp_path / "out", {"output_dir": str(tmp_path / "out"), "max_steps": 8, "save_steps": 4}
    jzero.fit(made(), Stateful(kind), {**arguments, "output_dir": str(tmp_path / "whole")})
    jzero.fit(made(), Stateful(kind), {**arguments, "max_steps": 4})
    iterator = Stateful(kind)
    result = jzero.fit(made(), iterator, arguments, resume="auto")
    assert losses(out) == losses(tmp_path / "whole")
    assert (result.step, result.unit, iterator.read) == (8, "row", 8 if kind == "none" else 4)


def test_iterables_begin_again_and_are_validated_on(made, tmp_path, caplog):
    caplog.set_level("INFO", "jzero")
    arguments = {"output_dir": str(tmp_path), "num_train_epochs": 1.5, "eval_strategy": "epoch", "torch_compile": True}
    result = jzero.fit(made(), BATCHES, arguments, validation=BATCHES[:2])
    assert result.step == 8
    assert "`torch_compile` has no effect here" in caplog.text
    assert list(losses(tmp_path, "validation_loss")) == [5, 8]
    model = made()
    expected = np.mean([float(model.eval_batch(batch)["loss"]) for batch in BATCHES[:2]])
    assert losses(tmp_path, "validation_loss")[5] < expected
    stopped = {**arguments, "early_stopping_patience": 1, "early_stopping_threshold": 100, "max_steps": 50}
    assert jzero.fit(made(), BATCHES, stopped, validation=BATCHES[:2], overwrite=True).step == 10


def test_a_state_is_that_of_the_batch_that_comes_next_whatever_was_made_ahead():
    feed = GivenFeed(Stateful())
    for index in range(6):
        feed.batch(index, 4)
    (state,) = feed.position(3)["iterator"]
    later = Stateful()
    GivenFeed(later).go_on({"iterator": [state]}, 3, print)
    assert later.at == 3


def test_what_does_not_fit_is_a_sentence(made, tmp_path):
    arguments = {"output_dir": str(tmp_path)}
    for batches, more, says in (
        (iter(BATCHES), {"max_steps": 9}, r"the iterator of batches ended after 5 batches, before the run does"),
        ([], {"max_steps": 9}, r"the iterator of batches ended after 0 batches"),
        (iter(BATCHES), {}, "max_steps is missing, and nobody knows how many"),
        (iter(BATCHES), {"max_steps": 4, "save_strategy": "epoch"}, 'save_strategy is "epoch", and nobody knows how'),
        (BATCHES, {"learning_rate": 0.1}, "arguments: learning_rate would have no effect, as the engine is made"),
        (BATCHES, {"max_step": 1}, "unknown key `max_step`; did you mean `max_steps`?"),
    ):
        with pytest.raises(ConfigError, match=says):
            jzero.fit(made(), batches, arguments | more, overwrite=True)


def test_a_state_of_another_iterator_is_a_sentence():
    for text in ("no", '{"text": 3}', '{"bytes": "eA=="}'):
        with pytest.raises(jzero.CheckpointError, match="is none of this one's"):
            GivenFeed(Stateful()).go_on({"iterator": [text]}, 3, print)


def test_grain(made, tmp_path):
    grain = pytest.importorskip("grain")
    data = lambda: grain.MapDataset.source(range(5)).shuffle(seed=1).repeat().map(BATCHES.__getitem__).to_iter_dataset()
    arguments = {"output_dir": str(tmp_path / "out"), "max_steps": 8, "save_steps": 4}
    jzero.fit(made(), data(), {**arguments, "output_dir": str(tmp_path / "whole")})
    jzero.fit(made(), data(), {**arguments, "max_steps": 4})
    jzero.fit(made(), data(), arguments, resume="auto")
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
