"""The run file and its overrides."""

import json

import pytest

from jzero.config import TrainingArguments, apply_overrides, load_run
from jzero.errors import ConfigError

RUN = {
    "model": {"family": "gpt", "n_layer": 2},
    "data": {"source": "text", "files": ["*.txt"], "seq_len": 32},
    "training_arguments": {"learning_rate": 1e-3, "max_steps": 10},
    "deepspeed": {"zero_optimization": {"stage": 1}},
}


@pytest.fixture
def run_file(tmp_path):
    def write(**changes):
        path = tmp_path / "run.json"
        path.write_text(json.dumps({k: v for k, v in {**RUN, **changes}.items() if v is not None}))
        return path

    return write


def message(path, overrides=()):
    with pytest.raises(ConfigError) as error:
        load_run(path, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_file(run_file):
    run = load_run(run_file())
    assert run.model == {"family": "gpt", "n_layer": 2}
    assert (run.data.source, run.data.files, run.data.seq_len) == ("text", ("*.txt",), 32)
    assert (run.training_arguments.learning_rate, run.training_arguments.max_steps) == (1e-3, 10)
    assert run.deepspeed.zero_optimization.stage == 1


def test_the_defaults_of_hugging_face():
    arguments = TrainingArguments()
    assert (arguments.learning_rate, arguments.per_device_train_batch_size, arguments.num_train_epochs) == (5e-5, 8, 3)
    assert (arguments.max_steps, arguments.lr_scheduler_type, arguments.weight_decay) == (-1, "linear", 0)
    assert (arguments.adam_beta1, arguments.adam_beta2, arguments.adam_epsilon) == (0.9, 0.999, 1e-8)
    assert (arguments.max_grad_norm, arguments.fp16, arguments.bf16, arguments.seed) == (1, False, False, 42)


def test_the_deepspeed_part_may_be_a_path_beside_the_run_file(run_file, tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    run = load_run(run_file(deepspeed="ds.json"), ["deepspeed.bf16.enabled=true"])
    assert (run.deepspeed.zero_optimization.stage, run.deepspeed.precision) == (3, "bf16")
    assert f"{tmp_path / 'absent.json'}: cannot read" in message(run_file(deepspeed="absent.json"))


def test_notes_on_the_training_arguments_reach_the_configuration(run_file):
    run = load_run(run_file(training_arguments={"learning_rate": "3e-4", "max_steps": 10}))
    assert run.training_arguments.learning_rate == 3e-4
    assert run.deepspeed.notes == ["`training_arguments.learning_rate` = '3e-4' in quotes is read as 0.0003"]


def test_overrides(run_file):
    overrides = ["deepspeed.zero_optimization.stage=2", "training_arguments.learning_rate=3e-4", "model.n_layer=4"]
    run = load_run(run_file(), [*overrides, 'data.files=["a.txt", "b.txt"]', "training_arguments.output_dir=runs/a b"])
    assert (run.deepspeed.zero_optimization.stage, run.training_arguments.learning_rate) == (2, 3e-4)
    assert (run.model["n_layer"], run.training_arguments.output_dir) == (4, "runs/a b")
    assert run.data.files == ("a.txt", "b.txt")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("true", True),
        ("null", None),
        ("auto", "auto"),
        ('"1"', "1"),
        ("", ""),
        ("[1, 2]", [1, 2]),
    ],
)
def test_values_of_overrides_are_json(text, value):
    assert apply_overrides({}, [f"a.b={text}"]) == {"a": {"b": value}}


def test_overrides_leave_the_original_alone():
    original = {"a": {"b": 1}}
    assert apply_overrides(original, ["a.b=2"]) == {"a": {"b": 2}}
    assert original == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "deepspeed.zero_optimization.stge=2",
            "unknown key `zero_optimization.stge`; `zero_optimization.stage`, which it resembles, is there",
        ),
        (
            "training_arguments.learning_rat=1",
            "unknown key `training_arguments.learning_rat`; `training_arguments.learning_rate`, which it",
        ),
        (
            "deepsped.zero_optimization.stage=2",
            "unknown key `deepsped`; `deepspeed`, which it resembles, is there already",
        ),
        ("deepspeed.zero_optimization.stage=4", "`zero_optimization.stage` must be 0, 1, 2 or 3, got 4"),
        ("stage", "override 'stage': write key=value, such as deepspeed.zero_optimization.stage=2"),
        ("data.seq_len.x=1", "override 'data.seq_len.x=1': `seq_len` is not an object but 32"),
    ],
)
def test_wrong_overrides(run_file, override, sentence):
    assert sentence in message(run_file(), [override])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": None}, "`model` is missing"),
        ({"model": {"n_layer": 2}}, '`model` must be an object with a `family`, such as {"family": "gpt"}'),
        ({"deepspeed": None}, "`deepspeed` is missing"),
        ({"deepspeed": 3}, "`deepspeed` must be a DeepSpeed configuration or the path of one, got 3"),
        ({"data": {"source": "text"}}, '`data.files` must list globs when `source` is one of "text",'),
        ({"data": {"source": "text", "files": "a.txt"}}, "`data.files` must be a list of strings, got 'a.txt'"),
        ({"data": {"source": "web"}}, "`data.source` must be one of stdlib, text, tokens, jsonl, got 'web'"),
        (
            {"data": {"source": "text", "files": ["a"], "tokenizer": "b"}},
            "`data.tokenizer` has no effect: the tokens of",
        ),
        ({"data": {"source": "jsonl", "files": ["a"]}}, '`data.tokenizer` is missing: `source` "jsonl" needs a'),
        ({"data": {"source": "tokens", "files": ["a"], "field": "b"}}, "`data.field` has no effect: it belongs to"),
        ({"data": {"seq_len": "auto"}}, "`data.seq_len` must be a value"),
        ({"data": {"packing": "best_fit", "document_mask": False}}, "`data.document_mask` cannot be false where"),
        ({"data": {"packing": "worst_fit"}}, "`data.packing` must be one of concatenate, best_fit, got 'worst_fit'"),
        ({"data": {"packng": "best_fit"}}, "unknown key `data.packng`; did you mean `packing`?"),
        ({"data": {"max_seq_length": 4}}, "unknown key `data.max_seq_length`; did you mean `seq_len`?"),
        ({"data": {"mixture": []}}, "`data.mixture` must be a list of objects such as "),
        ({"data": {"mixture": [3]}}, "`data.mixture` must be a list of objects, got 3 as entry 0"),
        (
            {"data": {"mixture": [{"sorce": "text"}]}},
            "is wrong in entry 0: unknown key `sorce`; did you mean `source`?",
        ),
        ({"data": {"mixture": [{"weight": 0}]}}, "is wrong in entry 0: `weight` must be a number at least 1e-06"),
        (
            {"data": {"mixture": [{"weight": 600}, {}]}},
            "`data.mixture` has weights of which one is more than 512 times",
        ),
        ({"data": {"mixture": [{}], "source": "stdlib"}}, "`data.source` belongs into the entries of `mixture`"),
        (
            {"training_arguments": {"fp16": True, "bf16": True}},
            "`training_arguments.fp16` and `bf16` are both true; choose one",
        ),
        (
            {"training_arguments": {"max_steps": "auto"}},
            '`training_arguments.max_steps` must be a value: "auto" belongs',
        ),
        ({"training_arguments": {"lr_scheduler_type": "logarithmic"}}, "must be one of linear, cosine,"),
        (
            {"training_arguments": {"zero_optimization": {"stage": 2}}},
            "unknown key `training_arguments.zero_optimization`",
        ),
    ],
)
def test_wrong_run_files(run_file, changes, sentence):
    path = run_file(**changes)
    assert sentence in message(path)
    assert message(path).startswith(f"{path}: ")
