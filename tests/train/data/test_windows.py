"""Batches are pure functions of their index, and an epoch sees every window once."""

import numpy as np
import pytest

from jzero.config import DataConfig
from jzero.errors import ConfigError
from jzero.train.data import VOCAB_SIZE, load_corpus
from tests.train.data.texts import windows_of

TEXT = bytes(range(101))  # 25 windows of 4: window i starts with byte 4 i


def starts(windows, index, rows, **part):
    return (windows.batch(index, rows, **part)["tokens"][:, 0] // 4).tolist()


def test_a_window_is_consecutive_bytes_and_its_targets_overlap_the_next_one():
    batch = windows_of(TEXT, 4, seed=0).batch(0, 25)["tokens"]
    assert batch.dtype == np.int32
    assert batch.shape == (25, 5)
    np.testing.assert_array_equal(batch, batch[:, :1] + np.arange(5))
    assert sorted(batch[:, 0]) == list(range(0, 100, 4))


def test_an_epoch_sees_every_window_once_and_the_next_in_another_order():
    windows = windows_of(TEXT, 4, seed=3)
    seen = [s for i in range(10) for s in starts(windows, i, 5)]
    assert sorted(seen[:25]) == sorted(seen[25:]) == list(range(25))
    assert seen[:25] != seen[25:]
    assert seen[:25] != list(range(25))


def test_batches_run_across_the_end_of_an_epoch():
    windows = windows_of(TEXT, 4, seed=3)
    flat = [s for i in range(10) for s in starts(windows, i, 5)]
    assert [s for i in range(5) for s in starts(windows, i, 10)] == flat


def test_a_batch_depends_on_seed_and_index_only():
    windows, again = windows_of(TEXT, 4, seed=3), windows_of(TEXT, 4, seed=3)
    windows.batch(9, 5)
    windows.batch(40, 5)
    np.testing.assert_array_equal(windows.batch(2, 5)["tokens"], again.batch(2, 5)["tokens"])
    assert starts(windows, 2, 5) != starts(windows_of(TEXT, 4, seed=4), 2, 5)


def test_the_parts_of_processes_make_up_the_batch():
    windows = windows_of(TEXT, 4, seed=3)
    parts = [row for p in range(4) for row in starts(windows, 7, 8, part=p, n_parts=4)]
    assert parts == starts(windows, 7, 8)


def test_a_batch_may_be_larger_than_the_text():
    assert len(starts(windows_of(b"abcdefghi", 4, seed=0), 0, 7)) == 7


def test_a_text_shorter_than_a_window_is_a_sentence():
    with pytest.raises(ConfigError) as error:
        windows_of(b"abcd", 4, seed=0)
    assert str(error.value) == "the text is 4 bytes long; data.seq_len 4 needs at least 5."


def test_a_corpus_from_files_and_from_the_standard_library(tmp_path):
    (tmp_path / "a.txt").write_text("hello world, " * 100)
    corpus = load_corpus(DataConfig(source="text", files=("*.txt",), seq_len=8, validation_share=0.1), base=tmp_path)
    assert bytes(corpus.train.batch(0, 1)["tokens"][0].astype(np.uint8)) in b"hello world, " * 3
    assert corpus.validation.n_windows == 16
    library = load_corpus(DataConfig(seq_len=64), seed=5)
    assert library.train.batch(0, 64)["tokens"].max() < VOCAB_SIZE
    assert library.train.n_windows > 10 * library.validation.n_windows > 10_000
