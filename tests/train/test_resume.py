"""Whose folder it is: what a start, a resume and a requeue find there, refuse, take and leave."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from jzero import checkpoint
from jzero.checkpoint import read_header
from jzero.checkpoint.run.place import complete_in
from jzero.errors import CheckpointError, ConfigError
from jzero.train.identity import FILE, mark, run_of_folder
from jzero.train.position import Facts
from jzero.train.resume import Start, check_new, check_overwrite, claim, load_start

NOW = Facts(rows=8, seq_len=32, seed=42, text="a-b", n_steps=20)


class Engine:
    """An engine without a model, whose state is a number of steps."""

    functional = SimpleNamespace(spec=SimpleNamespace(schedule=None))

    def __init__(self):
        self.state = SimpleNamespace(step=0, applied_steps=0)

    def load_checkpoint(self, path, **options):
        metadata = read_header(path)[1].metadata
        self.state.step = metadata["step"]
        return metadata["extra"]


def save(folder, *steps, **extra):
    for step in steps:
        facts = {**NOW._asdict(), "next_batch": step, **extra}
        checkpoint.save(folder / f"checkpoint-{step}", {"x": jnp.zeros(1)}, {"step": step, "extra": facts}).wait()


def begin(folder, resume=None, overwrite=False, now=NOW):
    """Begins a run as `train` does; returns its start, but for what was saved, and what was said."""
    said = []
    start = load_start(Engine(), folder, resume, said.append, now=now, overwrite=overwrite)
    claim(folder, start, said.append, overwrite=overwrite)
    return start._replace(saved={}), said


def steps(folder):
    return [step for step, _ in complete_in(folder)]


def test_an_empty_folder_becomes_that_of_the_run(tmp_path):
    start, said = begin(tmp_path)
    assert (start, said) == (Start(start.run), [])
    assert run_of_folder(tmp_path) == start.run
    again, said = begin(tmp_path, "auto")  # requeued before its first save
    assert (again, said) == (start, [f"No checkpoint in {tmp_path} yet: a new run."])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    other, said = begin(tmp_path)
    assert other.run != start.run
    assert said == [f"{tmp_path / 'metrics.jsonl'} of an earlier run is replaced."]


@pytest.mark.parametrize("extra", [{}, {"run": "other"}])
def test_a_new_run_is_refused_where_checkpoints_are(tmp_path, extra):
    save(tmp_path, 4, 8, **extra)
    with pytest.raises(CheckpointError) as error:
        begin(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds checkpoints of another run (checkpoint-4, checkpoint-8), which this one would mix with or "
        "remove: choose another training_arguments.output_dir, go on with that run by --resume auto, or remove its "
        "checkpoints by --overwrite."
    )
    assert steps(tmp_path) == [4, 8]
    assert not (tmp_path / FILE).exists()


def test_one_whose_header_is_damaged_counts(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "jzero.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"another run \(checkpoint-4\)"):
        begin(tmp_path)


def test_a_folder_that_cannot_be_looked_into_is_a_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=r"output_dir: cannot read .*xxx: File name too long"):
        check_new(tmp_path / ("x" * 300), overwrite=False)


def test_overwriting_removes_and_says_so(tmp_path):
    save(tmp_path, 1, 2, 3, 4, 5, run="other")
    mark(tmp_path, "other")
    start, said = begin(tmp_path, overwrite=True)
    assert said == [
        f"Removed what an earlier run left in {tmp_path}, as --overwrite says: "
        "checkpoint-1, checkpoint-2, 2 more, checkpoint-5."
    ]
    assert steps(tmp_path) == []
    assert run_of_folder(tmp_path) == start.run != "other"


def test_auto_goes_on_with_the_folders_own_run_alone(tmp_path):
    mark(tmp_path, "mine")
    save(tmp_path, 4, run="mine")
    save(tmp_path, 12, run="other")
    start, said = begin(tmp_path, "auto")
    other = tmp_path / "checkpoint-12"
    assert start == Start("mine", 4, 4, tmp_path / "checkpoint-4", (other,))
    assert said == [
        f"{other} is of another run than {tmp_path}: it is passed over and left alone.",
        f"Going on from {tmp_path / 'checkpoint-4'}, after step 4.",
    ]


def test_auto_does_not_begin_beside_another_runs_checkpoints(tmp_path):
    mark(tmp_path, "mine")
    save(tmp_path, 12, run="other")
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another run \(checkpoint-12\)"):
        begin(tmp_path, "auto")


def test_auto_refuses_a_run_of_another_seed(tmp_path):
    save(tmp_path, 4, run="other", seed=5)
    with pytest.raises(CheckpointError, match=r"is of a run with training_arguments\.seed 5, and this one has 42"):
        begin(tmp_path, "auto")
    start, (_, sentence) = begin(tmp_path, tmp_path / "checkpoint-4")
    assert start == Start("other", 4, 4, tmp_path / "checkpoint-4")
    assert sentence.startswith("training_arguments.seed is 42 and was 5: the text comes in another order")


def test_copied_checkpoints_bring_their_run_along(tmp_path):
    save(tmp_path, 4, run="copied")
    start, _ = begin(tmp_path, "auto")
    assert start.run == run_of_folder(tmp_path) == "copied"


def test_those_of_an_older_version_belong_to_whoever_has_the_folder(tmp_path):
    save(tmp_path, 4)
    start, _ = begin(tmp_path, "auto")
    assert start.step == 4
    save(tmp_path, 8, run=start.run)
    again, _ = begin(tmp_path, "auto")
    assert (again.run, again.step) == (start.run, 8)
    assert begin(tmp_path, tmp_path / "checkpoint-4")[0].run == start.run


def test_going_on_from_an_earlier_checkpoint_keeps_the_later_ones_and_says_so(tmp_path):
    save(tmp_path, 4, 8, 12, run="mine")
    start, said = begin(tmp_path, tmp_path / "checkpoint-4")
    assert start == Start("mine", 4, 4, tmp_path / "checkpoint-4")
    assert said == [
        f"Going on from {tmp_path / 'checkpoint-4'}, after step 4.",
        f"{tmp_path} also has later checkpoints (checkpoint-8, checkpoint-12); each stays until this run reaches its "
        "step, or training_arguments.save_total_limit removes it.",
    ]
    assert steps(tmp_path) == [4, 8, 12]


def test_a_run_from_elsewhere_keeps_its_name_and_is_refused_beside_another(tmp_path):
    there, here, empty = tmp_path / "there", tmp_path / "here", tmp_path / "empty"
    save(there, 4, run="there")
    save(here, 8, run="here")
    empty.mkdir()
    assert begin(empty, there)[0].run == run_of_folder(empty) == "there"
    with pytest.raises(CheckpointError, match=r"here holds checkpoints of another run \(checkpoint-8\)"):
        begin(here, there)
    begin(here, there, overwrite=True)
    assert (steps(here), steps(there)) == ([], [4])


def test_what_a_run_begins_with_is_not_overwritten(tmp_path):
    check_overwrite(tmp_path, {"--resume": None, "--weights": tmp_path.parent / "pretrained"})
    for option, source in {
        "--resume": "auto",
        "--weights": tmp_path / "checkpoint-4",
        "--resume ": tmp_path / "." / "checkpoint-4",
        "--weights ": tmp_path,
    }.items():
        with pytest.raises(ConfigError, match=f"--overwrite would remove .*, which {option} begins with"):
            check_overwrite(tmp_path, {option: source})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 7}', '{"run": ""}', "[" * 100_000, "\0\xff"])
def test_a_folder_that_does_not_say_whose_it_is_is_a_sentence(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match="does not say which run this folder belongs to"):
        run_of_folder(tmp_path)
    begin(tmp_path)  # a new run says it anew
    assert json.loads((tmp_path / FILE).read_text())["run"]
