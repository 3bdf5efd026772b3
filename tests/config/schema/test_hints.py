"""Unknown keys: a hint that leads on, a note where nothing is asked for, and an end where there are thousands."""

import re

import pytest

from jzero.config import Config
from jzero.config.schema.optimizer import PARAMS as OPTIMIZERS
from jzero.config.schema.scheduler import PARAMS as SCHEDULERS
from jzero.config.schema.section import SectionType, sections_of
from jzero.config.schema.verdicts import verdict
from jzero.errors import ConfigError
from tests.config.test_config import message

FP16 = {"fp16": {"enabled": True, "loss_scale": 0}}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"stagee": 3, "zero_optimization": {"stage": 3}}, "`stagee`; `zero_optimization.stage` says it"),
        ({"stage": 3, "zero_optimization": {"stage": 2}}, "`stage`; `zero_optimization.stage` says it already: remove"),
        (
            {"max_grad_norm": 1, "gradient_clipping": 1},
            "`max_grad_norm`; `gradient_clipping` says it already: remove `max_grad_norm`",
        ),
        (
            {"learning_rate": 1, "optimizer": {"type": "Adam", "params": {"lr": 1}}},
            "`learning_rate`; `optimizer.params.lr` says it already: remove `learning_rate`",
        ),
        (
            {"aio": {"loss_scale": 0}, **FP16},
            "`aio.loss_scale`; `fp16.loss_scale` says it already: remove `aio.loss_scale`",
        ),
        (
            {"zero_optimization": {"stage3_max_live_paramters": 1, "max_live_parameters": 2}},
            "`zero_optimization.max_live_parameters`, which it resembles, is there already: remove one of them",
        ),
        (
            {"curriculum_learnin": {"enabled": True}},
            "; remove it: `curriculum_learning`, which it resembles, is refused",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"max_gradnorm": 1}}},
            "`optimizer.params.max_gradnorm`; remove it: `max_grad_norm`, which it resembles, is refused too",
        ),
        (
            {"optimizer": {"type": "SGD", "eps": 1e-8}},
            "unknown key `optimizer.eps`; known here: type, params, legacy_fusion; or remove",
        ),
        ({"optimizer": {"type": "Adam", "eps": 1e-8}}, "`optimizer.eps`; it belongs under `optimizer.params`"),
        ({"bf16": {"enabled": True, "auto_cast": True}}, "`bf16.auto_cast`: remove it, as floating-point inputs are"),
        ({"fp16": {"enabled": True, "opt_level": "O3"}}, "`fp16.opt_level`: remove it, as only Apex has levels"),
        ({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}}, "params.learning_rate`; did you mean `lr`?"),
        (
            {"optimizer": {"type": "AdamW", "params": {"learning_rate": 1, "lr": 1}}},
            "unknown key `optimizer.params.learning_rate`; `lr` says it already: remove `learning_rate`",
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"epsilon": 1}}},
            "`optimizer.params.epsilon`; known here: lr, ",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}},
            "`scheduler.params.total_num_steps`: remove it, as WarmupLR has no end; WarmupDecayLR has one",
        ),
        ({"moe": {"experts": 4}}, "unknown key `moe`; no known key resembles it: remove it"),
    ],
)
def test_a_hint_does_not_lead_into_the_next_refusal(wrong, sentence):
    text = message(wrong)
    assert sentence in text
    for meant in re.findall(r"did you mean `([^`]*)`", text):
        assert meant not in str(wrong)


def schemas() -> dict[str, SectionType]:
    """Every section by its path, one for each type."""
    found = {}
    pending: list[tuple[str, SectionType]] = [("", Config)]
    while pending:
        path, cls = pending.pop()
        for name, field in cls.model_fields.items():
            inner = sections_of(field.annotation)
            pending += [(f"{path}.{name}".strip("."), section) for section in inner if len(inner) == 1]
        if not path.startswith(("optimizer", "scheduler")):
            found[path] = cls
    for name, types in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        found |= {f"{name}.params {kind}": cls for kind, cls in types.items()}
    return found


@pytest.mark.parametrize(("where", "cls"), schemas().items(), ids=schemas())
def test_no_misspelt_key_is_answered_with_one_that_is_refused_or_there(where, cls):
    path, _, kind = where.partition(" ")
    refused = {name for name, field in cls.model_fields.items() if verdict(field).kind == "refused"}
    for name in cls.model_fields:
        for given in ({}, {name: 1}):
            inner: object = {**given, f"{name[:-1]}{name[-1] * 2}": 1}
            for outer in reversed(path.split(".") if path else []):
                inner = {outer: inner, **({"type": kind} if outer == "params" else {})}
            try:
                said = " ".join(Config.load(inner).notes)  # type: ignore[arg-type]
            except ConfigError as error:
                said = str(error)
            for meant in re.findall(r"did you mean `([^`]*)`", said):
                assert meant.rpartition(".")[2] not in (refused if "." not in meant else set()) | given.keys()


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ({"foo": {"enabled": False, "size": 4}}, "`foo` is no known key, and asks for nothing"),
        ({"foo": {"a": False, "b": {"enabled": False}}}, "`foo` is no known key, and asks for nothing"),
        ({"zero_optimization": {"foo": {"a": False}}}, "`zero_optimization.foo` is no known key, and asks for nothing"),
        ({"fp166": {"enabled": False}}, "`fp166` is no known key, and asks for nothing; did you mean `fp16`?"),
    ],
)
def test_a_section_that_asks_for_nothing_is_noted(file, note):
    assert Config.load(file).notes == [note]


def test_a_misspelt_switch_may_ask_for_something_by_being_off():
    assert "did you mean `contiguous_gradients`?" in message({"zero_optimization": {"contiguous_gradient": False}})


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ({"zero_optimization": {"max_live_parameters": "x"}}, "zero_optimization.max_live_parameters"),
        ({"bfloat16": {"enabled": "x"}}, "bfloat16.enabled"),
        ({"bfloat16": {"immediate_grad": 1}}, "bfloat16.immediate_grad"),
        ({"bfloat16": {"bf16_optimizer_states": True}}, "bfloat16.bf16_optimizer_states"),
        ({"bfloat16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16.enabled"),
        ({"fp16": {"initial_loss_scale": 2.0**200}}, "fp16.initial_loss_scale"),
        ({"amp": {"enabled": True, "min_loss_scale": 2**20}}, "amp.min_loss_scale"),
    ],
)
def test_a_refusal_names_the_key_that_the_user_wrote(file, name):
    assert f"`{name}`" in message(file)


def test_notes_and_what_is_refused_later_name_it_too():
    file = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "max_live_parameters": 5}}
    config = Config.load(file)
    note = "`zero_optimization.max_live_parameters` = 5 has no effect: stage 2 does not read it; stage 3 does"
    assert config.notes == config.resolve(world=8).notes == [note]
    with pytest.raises(ConfigError, match=r"`bfloat16.enabled` \(needs training_arguments\)"):
        Config.load({"train_batch_size": 8, "bfloat16": {"enabled": "auto"}}).resolve(world=8)


def test_control_characters_and_long_keys_do_not_reach_the_terminal():
    for key in ("a\0b", "\x1b[31mred", "\ud800", "a\nb", "x" * 10**6):
        text = message({key: 1})
        assert text.isprintable()
        assert len(text) < 300
    assert "`a\\x00b`" in message({"a\0b": 1})
    note = Config.load({"_\x1b[31m": 1}).notes[0]
    assert note == "`_\\x1b[31m` is read as a comment"


def test_thousands_of_unknown_keys_are_counted_after_some():
    text = message({f"key_{i}": i for i in range(20_000)})
    assert text.count("unknown key `") == 30
    assert text.endswith("there are 19970 more unknown keys")
    assert len(Config.load({f"_{i}": i for i in range(20_000)}).notes) == 20_000
