"""Where a resumed run goes on in its text, and what is said of all that differs."""

import pytest

from jzero.errors import CheckpointError
from jzero.train.position import Facts, Position, find_position, schedule_change

NOW = Facts(rows=8, seq_len=32, seed=42, text="a-b", n_steps=20)
SAVED = {**NOW._asdict(), "next_batch": 6, "learning_rate": 0.001}


def test_nothing_is_said_of_the_same_run():
    assert find_position(SAVED, NOW, 6) == Position(6)
    assert schedule_change(SAVED, NOW, 0.001) is None
    assert schedule_change(SAVED, NOW, 0.001 * (1 + 1e-8)) is None


def test_what_an_older_version_did_not_save_is_taken_as_it_is():
    assert find_position({"next_batch": 6, "rows": 8, "model": {}}, NOW, 6) == Position(6)
    assert find_position({}, NOW, 5) == Position(5)
    assert schedule_change({"next_batch": 6}, NOW, 0.001) is None


@pytest.mark.parametrize(
    ("rows", "next_batch", "says"),
    [
        (16, 3, "had 8: it goes on at the same place in the text (batch 3)."),
        (4, 12, "had 8: it goes on at the same place in the text (batch 12)."),
        (10, 4, "had 8: it goes on at the same place in the text (batch 4; 8 windows are read again)."),
    ],
)
def test_a_batch_of_another_size_goes_on_at_the_same_text(rows, next_batch, says):
    found = find_position(SAVED, NOW._replace(rows=rows), 6)  # six batches of 8 were taken
    assert found == Position(next_batch, (f"The batch has {rows} windows and {says}",))


@pytest.mark.parametrize(
    ("change", "next_batch", "says"),
    [
        ({"seed": 7}, 6, "training_arguments.seed is 7 and was 42: the text comes in another order"),
        ({"seq_len": 16}, 12, "data.seq_len is 16 and was 32: the text comes in another order"),
        ({"seq_len": 64, "rows": 4}, 6, "data.seq_len is 64 and was 32: "),
        (
            {"text": "c-d"},
            6,
            "The text, its division into training and validation text, or how it is packed or mixed is not as it was: ",
        ),
        (
            {"seq_len": 16, "seed": 7, "text": "c"},
            12,
            "data.seq_len is 16 and was 32, and training_arguments.seed is 7 and was 42, and the text, its division",
        ),
    ],
)
def test_another_order_of_the_text_is_said_and_as_much_counts_as_read(change, next_batch, says):
    found = find_position(SAVED, NOW._replace(**change), 6)
    (sentence,) = found.sentences
    assert found.next_batch == next_batch
    assert sentence.startswith(says)
    assert "As much of it counts as read as before (1,536 tokens)" in sentence


def test_what_more_text_does_to_epochs_is_said():
    now = NOW._replace(text="c", windows=40)
    (sentence,) = find_position(SAVED | {"windows": 20}, now, 6).sentences
    assert sentence.endswith(" An epoch has 40 windows and had 20: the run was in epoch 3 and is in epoch 2.")
    (sentence,) = find_position(SAVED | {"windows": 40}, now, 6).sentences
    assert sentence.endswith("some is read again and some left out.")


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (
            SAVED | {"n_steps": 10},
            "The run has 20 steps (training_arguments.max_steps) and had 10: the next step has the learning rate "
            "0.002, and was to have 0.001.",
        ),
        (SAVED | {"n_steps": 10, "learning_rate": 0.002}, "the next step has the learning rate 0.002 as before, later"),
        (SAVED, "The schedule is another: the next step has the learning rate 0.002, and was to have 0.001."),
        (SAVED | {"learning_rate": 0}, "the learning rate 0.002, and was to have 0."),
        (SAVED | {"n_steps": 10, "learning_rate": None}, "and had 10; the learning rate of a schedule that depends on"),
    ],
)
def test_another_schedule_is_said_with_both_learning_rates(saved, says):
    assert says in schedule_change(saved, NOW, 0.002)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": "8"}, {"next_batch": -1}, {"next_batch": [1]}, {"rows": True}])
def test_numbers_that_are_none_are_a_sentence(wrong):
    (name,) = wrong
    with pytest.raises(CheckpointError, match=f"extra` has {name} = "):
        find_position(SAVED | wrong, NOW, 6)
