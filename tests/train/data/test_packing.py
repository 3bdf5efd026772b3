"""Packing loses no token and doubles none, and rows say which document each token is of."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.errors import ConfigError
from jzero.train.data.packing import best_fit, cut_long
from jzero.train.data.rows import FIELDS
from jzero.train.data.windows import Windows
from tests.train.data.texts import rows_of

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def numbered(lengths: list[int]) -> list[list[int]]:
    """Documents of which each token is another one, from 1 on."""
    ends = np.cumsum(lengths)
    return [list(range(int(end) - n + 1, int(end) + 1)) for n, end in zip(lengths, ends, strict=True)]


def targets(rows) -> list[tuple[int, int]]:
    """Every pair of a token and the one before it that a loss is taken of."""
    pairs = []
    for number in range(rows.n_rows):
        row = rows.row(number)
        tokens, segments = row["tokens"].tolist(), row["segment_ids"].tolist()
        pairs += [
            (tokens[i - 1], tokens[i])
            for i in range(1, len(tokens))
            if segments[i] and segments[i] == segments[i - 1] and row["loss_mask"][i]
        ]
    return pairs


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(1, 24), form=st.sampled_from(["apart", "best_fit"]))
def test_every_token_but_a_documents_first_is_a_target_once(lengths, seq_len, form):
    documents = numbered(lengths)
    expected = sorted(pair for ids in documents for pair in itertools.pairwise(ids))
    try:
        rows = rows_of(documents, seq_len, form)
    except ConfigError:
        assert sum(lengths) < 2 or (form == "best_fit" and max(lengths) < 2)
        return
    assert sorted(targets(rows)) == expected


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(1, 24))
def test_without_a_mask_every_token_but_the_first_and_a_rest_is_a_target_once(lengths, seq_len):
    flat = [t for ids in numbered(lengths) for t in ids]
    if len(flat) <= seq_len:
        return
    rows = rows_of(numbered(lengths), seq_len, "concatenate")
    made = [rows.row(n) for n in range(rows.n_rows)]
    assert all(row.keys() == {"tokens"} for row in made)
    assert [t for row in made for t in row["tokens"][1:].tolist()] == flat[1 : 1 + rows.n_rows * seq_len]
    assert len(flat) - 1 - rows.n_rows * seq_len < seq_len


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(4, 24), form=st.sampled_from(["apart", "best_fit"]))
def test_segments_are_documents_and_positions_count_in_them(lengths, seq_len, form):
    documents = numbered(lengths)
    of = {token: number for number, ids in enumerate(documents) for token in ids}
    try:
        rows = rows_of(documents, seq_len, form)
    except ConfigError:
        return
    for number in range(rows.n_rows):
        row = rows.row(number)
        assert all(row[name].shape == (seq_len + 1,) and row[name].dtype == np.int32 for name in FIELDS)
        for segment in set(row["segment_ids"].tolist()) - {0}:
            here = row["segment_ids"] == segment
            tokens = row["tokens"][here]
            assert len({of[token] for token in tokens.tolist()}) == 1
            np.testing.assert_array_equal(row["positions"][here], np.arange(len(tokens)))
            np.testing.assert_array_equal(tokens, tokens[0] + np.arange(len(tokens)))
        padding = row["segment_ids"] == 0
        assert not any(row[name][padding].any() for name in FIELDS)


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_best_fit_fills_no_row_too_far_and_needs_few(lengths):
    packing = best_fit(np.array(lengths), 9)
    assert sorted(packing.order.tolist()) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in packing.order[a:b]) for a, b in itertools.pairwise(packing.firsts)]
    assert max(filled) <= 9
    assert len(filled) <= 1 + 11 / 9 * -(-sum(lengths) // 9) + sum(n > 4 for n in lengths)
    assert sum(n <= 4 for n in filled) <= 1  # two such rows would have been one


def test_what_is_too_long_is_cut_into_pieces_that_share_a_token():
    pieces = cut_long(np.array([0, 10, 3]), np.array([9, 13, 4]), 4)
    assert list(zip(*(part.tolist() for part in pieces), strict=True)) == [(0, 0, 5), (0, 4, 9), (1, 10, 13)]


@pytest.mark.parametrize("form", ["concatenate", "apart", "best_fit"])
def test_what_does_not_count_is_said_token_by_token(form):
    rows = rows_of([[1, 2, 3], [5, 7, 8]], 5, form, odd=True)
    assert rows.full
    row = rows.row(0)
    np.testing.assert_array_equal(row["loss_mask"], row["tokens"] % 2)
    assert row["segment_ids"].tolist() == ([1] * 6 if form == "concatenate" else [1, 1, 1, 2, 2, 2])
    assert row["positions"].tolist() == (list(range(6)) if form == "concatenate" else [0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("form", ["concatenate", "apart", "best_fit"])
@pytest.mark.parametrize("index", [0, 5, 11])  # in the first epoch, and in later ones
def test_a_batch_is_that_of_two_processes_and_of_a_run_that_begins_there(form, index):
    lengths = [3 + (7 * i) % 11 for i in range(24)]
    make = lambda: Windows(rows_of(numbered(lengths), 8, form, odd=True), [5])
    whole, halves = make().batch(index, 8), [make().batch(index, 8, part=p, n_parts=2) for p in (0, 1)]
    assert make().n_windows < 11 * 8 // 2  # which is in epoch 3
    for name, value in whole.items():
        np.testing.assert_array_equal(value, np.concatenate([half[name] for half in halves]))
    smaller = [make().batch(2 * index + i, 4) for i in (0, 1)]
    np.testing.assert_array_equal(whole["tokens"], np.concatenate([batch["tokens"] for batch in smaller]))


def test_short_texts_are_sentences():
    for form, says in (("apart", "needs at least 2"), ("best_fit", "has no document of two bytes or more")):
        with pytest.raises(ConfigError, match=says):
            rows_of([[4]], 8, form)
    with pytest.raises(ConfigError, match="a batch of 9 rows cannot be divided among 2 processes"):
        Windows(rows_of([[1, 2, 3]], 2, "apart"), [0]).batch(0, 9, n_parts=2)
