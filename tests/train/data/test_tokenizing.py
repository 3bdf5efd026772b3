"""Files become token files: all of each, in order, with the end of a text behind each document."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jzero.errors import ConfigError
from jzero.train.data import records
from jzero.train.data.records import cut
from jzero.train.data.token_file import TokenFile
from jzero.train.data.tokenizer import Tokenizer
from jzero.train.data.tokenizing import Made, tokenize_files
from tests.train.data.bpe import EOS, library, save_tokenizer


@pytest.fixture
def made(tmp_path: Path):
    """Returns a function that tokenises files of given contents: the file, and what is said of it."""
    folder = save_tokenizer(tmp_path / "model")

    def make(contents: dict[str, str], **options) -> tuple[TokenFile, Made]:
        for name, content in contents.items():
            (tmp_path / name).write_text(content)
        paths = [tmp_path / name for name in contents]
        result = tokenize_files(paths, Tokenizer(folder), tmp_path / "out.tokens", **options)
        return TokenFile(tmp_path / "out.tokens"), result

    return make


def texts(file: TokenFile, only: int | None = None) -> list[str]:
    """The documents, or what counts (1) or not (0) of each."""
    result, start = [], 0
    for end in map(int, file.ends):
        ids = file.read(start, end)
        kept = ids if only is None else ids[file.counted[start:end] == only]
        result.append(library().decode(kept.tolist(), skip_special_tokens=False))
        start = end
    return result


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_a_text_file_is_a_document(made):
    file, result = made({"a.txt": "one\ntwo", "b.md": "größe", "c.txt": ""})
    assert texts(file) == [f"one\ntwo{EOS}", f"größe{EOS}"]
    assert (result.head.n_documents, result.n_empty) == (2, 1)
    assert result.notes == ("1 documents without any text are left out.",)
    assert result.head.tokenizer == Tokenizer(file.path.parent / "model").sha256


def test_a_long_text_has_the_ids_of_the_whole(made, monkeypatch):
    text = Path(json.__file__).read_text() + "größe" * 300 + "\n\n  x = 1\n" * 200 + "ä€𝄞" * 500
    whole = library().encode(text).ids
    for piece in (300, 301, 302, 303):
        monkeypatch.setattr(records, "PIECE", piece)
        file, _ = made({"a.txt": text})
        assert texts(file) == [text + EOS]
        assert len(file.tokens) <= len(whole) + 1 + len(text.encode()) // piece
        monkeypatch.setattr(records, "PIECE", 4096)
    file, _ = made({"a.txt": Path(records.__file__).read_text()})
    assert file.tokens[:-1].tolist() == library().encode(Path(records.__file__).read_text()).ids


def test_a_cut_is_before_a_line_or_a_blank():
    assert cut("a\nb\n c") == 2
    assert cut("a b  c") == 1
    assert cut("abc") == 3


def test_records_of_a_field(made):
    file, _ = made({"a.jsonl": lines({"text": "one"}, {"text": "two", "id": 4}) + "\n"})
    assert texts(file) == [f"one{EOS}", f"two{EOS}"]
    file, _ = made({"a.jsonl": lines({"text": "no", "body": "yes"})}, field="body")
    assert (texts(file), file.counted) == ([f"yes{EOS}"], None)


def test_answers_alone_count(made):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file, _ = made({"a.jsonl": lines({"prompt": "2+2=", "completion": "4"}, {"messages": chat}), "b.txt": "free"})
    assert texts(file, only=0) == ["2+2=", "<|user|>hi<|assistant|>", ""]
    assert texts(file, only=1) == [f"4{EOS}", f"hello{EOS}", f"free{EOS}"]


def test_the_hash_of_a_document_is_that_of_its_text(made):
    one, _ = made({"a.jsonl": lines({"text": "one"}, {"text": "two"})})
    draws = one.draws.tolist()
    two, _ = made({"b.jsonl": lines({"text": "new"}, {"text": "two"}, {"text": "one"})})
    assert two.draws.tolist()[1:] == draws[::-1]


@pytest.mark.parametrize("megabytes", [2, pytest.param(20, marks=pytest.mark.full)])
def test_all_of_four_long_files_is_there(tmp_path, megabytes):
    text = "".join(f"{i} and {i * i}\n" for i in range(300_000))[: megabytes * 10**6 // 4]
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(text)
    seen: list[tuple[int, int, int]] = []
    result = tokenize_files(
        [tmp_path / f"{name}.txt" for name in "abcd"], Tokenizer(save_tokenizer(tmp_path / "model")),
        tmp_path / "out.tokens", progress=lambda *done: seen.append(done),
    )  # fmt: skip
    file = TokenFile(tmp_path / "out.tokens")
    assert result.n_characters == 4 * len(text) == megabytes * 10**6
    assert seen[-1] == (4, file.head.n_tokens, 4)
    quarters = np.split(np.asarray(file.tokens), 4)
    assert all((quarter == quarters[0]).all() for quarter in quarters)
    assert library().decode(quarters[0].tolist()) == text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", "[]", r"a\.json: JSON must be one object a line"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', r"a\.jsonl, line 2 is no JSON at column 8"),
        ("a.jsonl", "[1]\n", r"a\.jsonl, record 1 is no object"),
        ("a.jsonl", lines({"body": "x"}), r"record 1: `text` must be a string; its fields are body\. --field, or data"),
        ("a.jsonl", lines({"text": 4}), r"`text` must be a string; it is 4"),
        ("a.jsonl", lines({"text": "a"}, {"prompt": "b", "completion": "c"}), "begins with a text and goes on with"),
        ("a.jsonl", lines({"messages": []}), "`messages` must be a list of objects with"),
        ("a.jsonl", lines({"messages": [{"role": "user", "content": "x"}]}), "record 1: `messages` has no message of"),
        ("a.jsonl", lines({"text": "\ud800"}), r"record 1 has half of a character"),
        ("a.jsonl", "[" * 10**5 + "\n", "lie too deep in each other"),
        ("a.txt", "", r"a\.txt: there is no document with any text"),
        ("a.jsonl", lines({"prompt": "a"}), r"record 1 has no `completion`; a record of instructions has"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_and_leaves_nothing(made, tmp_path, name, content, says):
    with pytest.raises(ConfigError, match=says):
        made({name: content})
    assert {path.name for path in tmp_path.iterdir()} == {"model", name}


def test_bytes_that_are_no_text_are_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    with pytest.raises(ConfigError, match=r"a\.txt is not UTF-8 text"):
        tokenize_files([tmp_path / "a.txt"], Tokenizer(save_tokenizer(tmp_path / "model")), tmp_path / "out")


def test_parquet_and_saved_datasets(made, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = arrow.table({"text": [f"number {i}" for i in range(2500)], "n": list(range(2500))})
    parquet.write_table(table, tmp_path / "a.parquet")
    saved = tmp_path / "saved"
    saved.mkdir()
    with arrow.OSFile(str(saved / "data-0.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}], "_split": "train"}))
    expected = [f"number {i}{EOS}" for i in range(2500)]
    for path in (tmp_path / "a.parquet", saved):
        tokenize_files([path], Tokenizer(tmp_path / "model"), tmp_path / "out.tokens")
        assert texts(TokenFile(tmp_path / "out.tokens")) == expected
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x"}]}))
    (tmp_path / "b.parquet").write_text("no")
    for path, says in ((saved, "no file inside its folder"), (tmp_path / "b.parquet", "cannot be read as parquet")):
        with pytest.raises(ConfigError, match=says):
            tokenize_files([path], Tokenizer(tmp_path / "model"), tmp_path / "out.tokens")


def test_folders_and_packages_that_are_missing_are_sentences(made, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    tokenizer = Tokenizer(tmp_path / "model")
    with pytest.raises(ConfigError, match="is no folder that `datasets` saved"):
        tokenize_files([tmp_path / "folder"], tokenizer, tmp_path / "out")
    (tmp_path / "folder" / "dataset_dict.json").touch()
    with pytest.raises(ConfigError, match=re.escape(f"several splits; name the folder of one, such as {tmp_path}")):
        tokenize_files([tmp_path / "folder"], tokenizer, tmp_path / "out")
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"a parquet file needs the package pyarrow: pip install 'jzero\[parquet\]'"):
        tokenize_files([tmp_path / "a.parquet"], tokenizer, tmp_path / "out")


def test_a_tokenizer_that_marks_beginnings_is_said_of_parts_as_parts(tmp_path):
    tokenizer = json.loads(library().to_str())
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True
    save_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    chat = {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}
    for record in (chat, {"prompt": "one", "completion": "two"}):
        (tmp_path / "a.jsonl").write_text(lines(record))
        made = tokenize_files([tmp_path / "a.jsonl"], Tokenizer(tmp_path / "model"), tmp_path / "out")
        assert [note for note in made.notes if "250,000" in note] == []
        assert "1 parts of records may begin with a mark" in made.notes[0]
