"""Which files are read, in which order, and how they are divided."""

import os
from pathlib import Path

import numpy as np
import pytest

from jzero.errors import ConfigError
from jzero.train.data.documents import FileDocuments, divide
from jzero.train.data.files import NamedFile, glob_files, stdlib_files


def read_split(files, share):
    """Training and validation text, whole."""
    return [
        np.concatenate([text.documents.read(int(text.which[n]), a, b) for n, a, b in text.spans(0, len(text))])
        for text in divide(FileDocuments(files), share)
    ]


def write(folder: Path, count: int) -> None:
    for i in range(count):
        (folder / f"part{i % 3}").mkdir(exist_ok=True)
        (folder / f"part{i % 3}" / f"{i}.txt").write_text(f"text {i}")


def test_the_standard_library_is_there_without_its_tests():
    names = [file.name for file in stdlib_files()]
    assert "asyncio/base_events.py" in names
    assert len(names) > 200
    assert len(names) == len(set(names))
    assert not any("test" in Path(name).parts or name.startswith("site-packages") for name in names)
    assert names == [file.name for file in stdlib_files()]


def test_order_and_division_depend_on_names_alone(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        write(folder, 60)
    found = glob_files(["**/*.txt"], one)
    assert [f.name for f in found] == [f.name for f in glob_files(["part*/*.txt", "part0/0.txt"], two)]
    before = read_split(found, 0.3)[1].tobytes().split(b"\0")
    (one / "part0" / "new.txt").write_text("new text")
    after = read_split(glob_files(["**/*.txt"], one), 0.3)[1].tobytes().split(b"\0")
    assert set(before) <= set(after)
    assert set(after) - set(before) <= {b"new text"}


def test_the_division_keeps_files_whole_and_near_the_share(tmp_path):
    write(tmp_path, 200)
    train, validation = (
        part.tobytes().rstrip(b"\0").split(b"\0") for part in read_split(glob_files(["**/*.txt"], tmp_path), 0.25)
    )
    assert sorted(train + validation) == sorted(f"text {i}".encode() for i in range(200))
    assert 30 < len(validation) < 70


def test_a_single_file_is_cut_at_its_end(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 80 + b"y" * 19)
    train, validation = read_split(glob_files(["a.txt"], tmp_path), 0.2)
    assert (train.tobytes(), validation.tobytes()) == (b"x" * 80, b"y" * 19 + b"\0")


def test_all_of_a_long_text_is_read(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_bytes(bytes([65 + i]) * 3_000_000)
    assert sum(map(len, read_split(glob_files(["*.txt"], tmp_path), 0.5))) == 9_000_003


@pytest.mark.parametrize("content", ["abcd", "ab", "xyz"])
def test_a_file_that_changes_while_it_is_read_is_a_sentence(tmp_path, content):
    (tmp_path / "a.txt").write_text("abc")
    documents = FileDocuments(glob_files(["a.txt"], tmp_path))
    (tmp_path / "a.txt").write_text(content)
    os.utime(tmp_path / "a.txt", (1, 1))
    with pytest.raises(ConfigError, match=r"a\.txt has changed since the run began to read it"):
        documents.read(0, 0, 3)


def test_the_fingerprint_tells_texts_apart_also_where_it_reads_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr("jzero.train.data.documents._BLOCK", 4)
    for limit in (2**30, 1):
        monkeypatch.setattr("jzero.train.data.documents._WHOLE_HASH", limit)
        prints = set()
        for content in ("aaaabbbbcccc", "aaaabbbbcccd", "xaaabbbbcccc", "aaaabbbbccccc"):
            (tmp_path / "a.txt").write_text(content)
            documents = FileDocuments(glob_files(["a.txt"], tmp_path))
            prints |= {tuple(text.fingerprint for text in divide(documents, share)) for share in (0.2, 0.3)}
        assert len(prints) == 8


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    found = [NamedFile("gone.txt", tmp_path / "gone.txt")]
    with pytest.raises(ConfigError, match=r"data: cannot read .*gone\.txt: No such file or directory\."):
        read_split(found, 0.2)


@pytest.mark.parametrize("pattern", ["**/*.txt", "part*/*.txt", "part0/[0-9]*.txt"])
def test_order_and_division_do_not_depend_on_where_the_text_lies(tmp_path, pattern):
    texts = []
    for folder in (tmp_path / "one", tmp_path / "deep" / "er" / "two"):
        folder.mkdir(parents=True)
        write(folder, 40)
        texts += [read_split(glob_files([str(folder / pattern)], Path("elsewhere")), 0.3)]
        texts += [read_split(glob_files([f"{folder.name}/{pattern}"], folder.parent), 0.3)]
    assert len({(train.tobytes(), validation.tobytes()) for train, validation in texts}) == 1


def test_files_of_one_name_come_in_the_order_of_the_patterns(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(name)
    found = glob_files(["b/*.txt", "a/*.txt", "a/../b/x.txt"], tmp_path)
    assert [file.path.read_text() for file in found] == ["b", "a"]


def test_a_path_with_a_globs_characters_is_that_file(tmp_path):
    (tmp_path / "[draft]").mkdir()
    (tmp_path / "[draft]" / "x?.txt").write_text("here")
    (file,) = glob_files([str(tmp_path / "[draft]" / "x?.txt")], Path("elsewhere"))
    assert (file.name, file.path.read_text()) == ("x?.txt", "here")


def test_an_absolute_glob_works(tmp_path):
    write(tmp_path, 3)
    assert len(glob_files([str(tmp_path / "part*/*.txt")], Path("elsewhere"))) == 3


def test_a_glob_without_files_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError) as error:
        glob_files(["missing/*.txt"], tmp_path)
    assert str(error.value) == f"data.files: no file matches 'missing/*.txt' in {tmp_path}."


@pytest.mark.parametrize("pattern", ["", "/", "a/" + 300 * "x", "a\0b", "***.txt", "**"])
def test_what_is_no_glob_is_a_sentence(tmp_path, pattern):
    with pytest.raises(ConfigError, match=r"data\.files: "):
        glob_files([pattern], tmp_path / "nowhere")


def test_draws_are_spread_evenly():
    draws = [NamedFile(str(i), Path()).draw for i in range(2000)]
    assert 0.45 < sum(draws) / len(draws) < 0.55
    assert 0 <= min(draws) < max(draws) < 1
