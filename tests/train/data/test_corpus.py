"""A run file's data: token files, records and mixtures, divided by document, whatever process reads them."""

import json
from pathlib import Path

import numpy as np
import pytest

from jzero.config import DataConfig
from jzero.config.schema.building import build
from jzero.errors import ConfigError
from jzero.train.data import load_corpus
from jzero.train.data.token_file import TokenFile
from jzero.train.data.tokenizer import Tokenizer
from jzero.train.data.tokenizing import tokenize_files
from jzero.train.feed import CorpusFeed
from tests.train.data.bpe import EOS, library, save_tokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer, records of instructions, and a token file of text."""
    save_tokenizer(tmp_path / "model")
    pairs = [
        {"prompt": f"{i} + {i} =", "completion": f" {2 * i}, and {i} times that is {2 * i * i}"} for i in range(60)
    ]
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*pairs, CHAT]))
    texts = [{"text": f"{i} squared is {i * i}. " * (1 + i % 7)} for i in range(80)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in texts))
    tokenize(tmp_path, "texts.jsonl", "texts.tokens")
    return tmp_path


def tokenize(folder: Path, source: str, out: str) -> None:
    tokenize_files([folder / source], Tokenizer(folder / "model"), folder / out)


def corpus(folder: Path, seed: int = 0, **data):
    return load_corpus(
        build(DataConfig, {"seq_len": 48, "validation_share": 0.2, **data}, file="run"), base=folder, seed=seed
    )


FORMS = {
    "tokens": {"source": "tokens", "files": ["texts.tokens"], "tokenizer": "model"},
    "tokens, apart": {"source": "tokens", "files": ["texts.tokens"], "document_mask": True},
    "tokens, best fit": {"source": "tokens", "files": ["texts.tokens"], "packing": "best_fit"},
    "jsonl": {"source": "jsonl", "files": ["sft.jsonl"], "tokenizer": "model"},
    "jsonl, a field": {"source": "jsonl", "files": ["texts.jsonl"], "tokenizer": "model", "field": "text"},
}
FORMS["mixture"] = {"mixture": [{**FORMS["tokens"], "weight": 3}, {**FORMS["jsonl"], "weight": 1}]}
FORMS["mixture of text"] = {"mixture": [{**FORMS["tokens"]}, {**FORMS["tokens"], "weight": 2}]}


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_the_same_in_every_run_and_on_any_number_of_processes(folder, form):
    one, two = (corpus(folder, seed=7, **FORMS[form]) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    index = 3 * one.train.n_windows // 4  # of batches of 4: in the third or fourth epoch
    whole, halves = one.train.batch(index, 4), [two.train.batch(index, 4, part=p, n_parts=2) for p in (0, 1)]
    assert whole.keys() == ({"tokens"} if not one.full else {"tokens", "segment_ids", "positions", "loss_mask"})
    for name, value in whole.items():
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, np.concatenate([half[name] for half in halves]))
    assert (one.unit, one.vocab_size) == ("tokens", 400)
    other = corpus(folder, seed=8, **FORMS[form])
    assert (other.train.batch(0, 4)["tokens"] != one.train.batch(0, 4)["tokens"]).any()
    assert one.validation.n_windows < one.train.n_windows


def decoded(batch: dict[str, np.ndarray], what) -> list[str]:
    tokenizer = library()
    return [
        tokenizer.decode(row[mask].tolist(), skip_special_tokens=False)
        for row, mask in zip(batch["tokens"], what(batch), strict=True)
    ]


def test_only_answers_are_counted(folder):
    batch = corpus(folder, **FORMS["jsonl"]).train.batch(0, 20)
    counted = " ".join(decoded(batch, lambda b: b["loss_mask"] == 1))
    prompts = " ".join(decoded(batch, lambda b: (b["loss_mask"] == 0) & (b["segment_ids"] > 0)))
    assert ", and " in counted
    assert EOS in counted
    assert " + " not in counted
    assert " + " in prompts
    assert ", and " not in prompts


def test_documents_are_divided_by_their_text(folder):
    def held_out(**data) -> set[str]:
        batches = corpus(folder, **data).validation
        rows = batches.batch(0, batches.n_windows)
        return {t for text in decoded(rows, lambda b: b["segment_ids"] > 0) for t in text.split(EOS) if "squared" in t}

    before = held_out(**FORMS["tokens, best fit"])
    assert 5 < len(before) < 30
    (folder / "more.jsonl").write_text("".join(json.dumps({"text": f"more {i}"}) + "\n" for i in range(50)))
    tokenize(folder, "more.jsonl", "more.tokens")
    files = ["more.tokens", "texts.tokens"]
    assert held_out(source="tokens", files=files, packing="best_fit") == before


def test_a_mixture_has_its_shares(folder):
    batch = corpus(folder, **FORMS["mixture"]).train.batch(0, 1024)
    plain = (batch["loss_mask"] == 1).all(axis=1)  # whole windows of text
    assert plain.sum() == 768


def test_what_was_packed_otherwise_is_another_text(folder):
    prints = [corpus(folder, **form).fingerprint for name, form in FORMS.items() if "field" not in name]
    prints.append(corpus(folder, mixture=[FORMS["tokens"], {**FORMS["tokens"], "weight": 3}]).fingerprint)
    assert len(set(prints)) == len(prints)


def test_long_records_and_padding_are_told(folder):
    notes = corpus(folder, **{**FORMS["jsonl"], "seq_len": 16}).notes
    assert "best fit: " in notes[0]
    assert "% is padding" in notes[0]
    assert "documents are longer than data.seq_len 16 and are cut into several" in notes[1]


def test_few_records_leave_one_to_validate_on(folder):
    (folder / "two.jsonl").write_text(2 * (json.dumps(CHAT) + "\n"))
    (folder / "two.jsonl").write_text(
        "".join(json.dumps({"prompt": str(i), "completion": "a b"}) + "\n" for i in (1, 2))
    )
    two = corpus(folder, source="jsonl", files=["two.jsonl"], tokenizer="model", validation_share=0.01)
    assert (two.train.n_windows, two.validation.n_windows) == (1, 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"source": "tokens", "files": ["model/tokenizer.json"]}, "cannot be read as a token file: it is none"),
        ({"source": "tokens", "files": ["texts.tokens"], "tokenizer": "other"}, "was made by another tokenizer than"),
        ({"source": "tokens", "files": ["*.tokens"]}, "were made by different tokenizers"),
        ({"mixture": [{}, FORMS["tokens"]]}, "bytes and tokens do not mean the same"),
        ({"mixture": [{"source": "tokens", "files": ["other.tokens"]}, FORMS["tokens"]]}, "by different tokenizers"),
        ({"source": "jsonl", "files": ["sft.jsonl"], "tokenizer": "none"}, r"tokenizer: .*none cannot be read"),
    ],
)
def test_what_does_not_fit_is_a_sentence(folder, data, says):
    other = save_tokenizer(folder / "other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    if "tokens" in str(data.get("files")) or "mixture" in data:
        tokenize_files([folder / "texts.jsonl"], Tokenizer(other), folder / "other.tokens")
    with pytest.raises(ConfigError, match=says):
        corpus(folder, **data)


def test_records_leave_no_file_behind(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder / "model"))
    before = sorted((folder / "model").iterdir())
    records = corpus(folder, **FORMS["jsonl"])
    assert sorted((folder / "model").iterdir()) == before
    assert records.train.batch(0, 2)["tokens"].any()
    assert TokenFile(folder / "texts.tokens").head.n_documents == 80


def test_what_tokenising_left_out_and_who_made_the_tokens_is_known(folder):
    (folder / "texts2.jsonl").write_text((folder / "texts.jsonl").read_text() + json.dumps({"text": ""}) + "\n")
    found = corpus(folder, source="jsonl", files=["texts2.jsonl"], tokenizer="model")
    assert found.notes[0] == "1 documents without any text are left out."
    assert found.tokenizer == Tokenizer(folder / "model").sha256
    assert corpus(folder, source="stdlib").tokenizer is None


def test_records_without_any_text_are_named(folder):
    (folder / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"/empty\.jsonl: there is no document with any text"):
        corpus(folder, source="jsonl", files=["empty.jsonl"], tokenizer="model")


def test_an_evaluation_counts_each_row_once_whatever_the_batch(folder):
    packed, plain = corpus(folder, **FORMS["jsonl"]), corpus(folder, **FORMS["tokens"])
    n, m = packed.validation.n_windows, plain.validation.n_windows
    counts = {
        rows: [weight for _, weight in CorpusFeed(packed).validation(rows)] for rows in (1, 2, n - 1, n, 2 * n + 1)
    }
    assert {sum(weights) for weights in counts.values()} == {sum(counts[1])}
    assert [len(weights) for weights in counts.values()] == [n, -(-n // 2), 2, 1, 1]
    ((batch, weight),) = CorpusFeed(plain).validation(2 * m + 1)
    assert (len(batch["tokens"]), weight) == (m, 48 * m)
