"""The format of token files: what is written is read, and what is no whole file is a sentence."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.errors import ConfigError
from jzero.train.data.token_file import HEAD_BYTES, TokenFile, TokenWriter


def write(path: Path, documents: list[list[int]], *, vocab_size: int = 300, counted: bool = False) -> Path:
    with TokenWriter(path, vocab_size=vocab_size, eos=0, tokenizer="a" * 64, counted=counted) as writer:
        for draw, ids in enumerate(documents):
            writer.add(np.array(ids), np.array(ids) % 2)
            writer.end_document(draw)
        writer.finish()
    return path


@pytest.mark.parametrize("vocab_size", [300, 2**16, 2**16 + 1, 200_000])
@pytest.mark.parametrize("counted", [False, True])
def test_what_is_written_is_read(tmp_path, vocab_size, counted):
    documents = [[1, 2, vocab_size - 1], [5], [7] * 9]
    flat = [i for ids in documents for i in ids]
    file = TokenFile(write(tmp_path / "x.tokens", documents, vocab_size=vocab_size, counted=counted))
    assert file.read(0, file.head.n_tokens).tolist() == flat
    assert (file.ends.tolist(), file.draws.tolist()) == ([3, 4, 13], [0, 1, 2])
    assert file.tokens.dtype == ("<u2" if vocab_size <= 2**16 else "<u4")
    if counted:
        assert file.counted.tolist() == [i % 2 for i in flat]
    else:
        assert file.counted is None


def test_the_tokens_lie_flat_behind_the_head(tmp_path):
    path = write(tmp_path / "x.tokens", [[1, 2], [3]])
    assert np.fromfile(path, "<u2", 3, offset=HEAD_BYTES).tolist() == [1, 2, 3]


def test_nothing_is_left_of_a_file_that_is_not_finished(tmp_path):
    with TokenWriter(tmp_path / "x", vocab_size=9, eos=0, tokenizer="", counted=True) as writer:
        writer.add(np.array([1]))
    with pytest.raises(ConfigError, match="no document with any text"):
        write(tmp_path / "x", [])
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays_until_the_new_one_is_complete(tmp_path):
    before = write(tmp_path / "x.tokens", [[1, 2]]).read_bytes()
    with TokenWriter(tmp_path / "x.tokens", vocab_size=9, eos=0, tokenizer="", counted=False) as writer:
        writer.add(np.array([3]))
        writer.end_document(1)
        assert (tmp_path / "x.tokens").read_bytes() == before
        writer.finish()
    assert TokenFile(tmp_path / "x.tokens").read(0, 1).tolist() == [3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b"", "it is none; `jzero tokenize` makes one"),
        (lambda b: b"hello" * 2000, "it is none"),
        (lambda b: b[:100], "it ends within its head"),
        (lambda b: b[:-1], "bytes long, and its head speaks of"),
        (lambda b: b + b"\0", "bytes long, and its head speaks of"),
        (lambda b: b.replace(b'"format": 1', b'"format": 9'), "it has format 9, and this version reads 1"),
        (lambda b: b.replace(b"uint16", b"int160"), "its dtype is 'int160'"),
        (lambda b: b.replace(b'"n_tokens": 3', b'"n_tokens":-3'), "`n_tokens`: input should be greater"),
        (lambda b: b.replace(b'"n_documents": 2', b'"n_documents": 0'), "3 tokens in 0 documents"),
        (lambda b: b.replace(b'"vocab_size": 300', b'"vocab_size": 9e9'), "`vocab_size`: input should be a valid int"),
        (lambda b: b.replace(b'"eos"', b'"oes"'), "`eos`: field required"),
        (lambda b: b[:-32] + np.array([3, 0, 2, 1], "<u8").tobytes(), "its documents do not follow each other"),
        (lambda b: b[:-32] + np.array([2, 0, 9, 1], "<u8").tobytes(), "its documents do not follow each other"),
    ],
)
def test_what_is_no_token_file_is_a_sentence(tmp_path, change, says):
    path = write(tmp_path / "x.tokens", [[1, 2], [3]])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"x\.tokens cannot be read as a token file: .*" + says):
        TokenFile(path)


def test_a_folder_and_nothing_are_sentences(tmp_path):
    for path, says in ((tmp_path, "it is a folder"), (tmp_path / "no", "No such file")):
        with pytest.raises(ConfigError, match=says):
            TokenFile(path)


def test_a_token_beyond_the_vocabulary_is_a_sentence(tmp_path):
    file = TokenFile(write(tmp_path / "x.tokens", [[1, 300]]))
    assert file.read(0, 1).tolist() == [1]
    with pytest.raises(ConfigError, match="is damaged: it has the token 300, and its vocabulary has 300"):
        file.read(0, 2)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, HEAD_BYTES + 60), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_or_a_sentence(tmp_path_factory, at, byte):
    path = write(tmp_path_factory.mktemp("x") / "x.tokens", [[1, 2, 3], [4, 5]], counted=True)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        file = TokenFile(path)
        assert len(file.read(0, file.head.n_tokens)) == 5
