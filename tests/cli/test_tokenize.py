"""`jzero tokenize`: what it prints, and what it refuses."""

import json

from typer.testing import CliRunner

from jzero.cli.program import app
from jzero.train.data.token_file import TokenFile
from tests.train.data.bpe import save_tokenizer


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tokenize", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_token_file_is_made_once(tmp_path):
    model, out = save_tokenizer(tmp_path / "model"), tmp_path / "new" / "x.tokens"
    (tmp_path / "a.txt").write_text("one two three")
    (tmp_path / "b.jsonl").write_text('{"prompt": "four", "completion": "five"}\n')
    status, text = run(tmp_path / "*.txt", tmp_path / "b.jsonl", "--tokenizer", model, "--out", out)
    assert (status, " tokens (uint16) in 2 documents from 2 files, in " in text) == (0, True)
    assert " of the tokens count in the loss." in text
    status, text = run(tmp_path / "a.txt", "--tokenizer", model, "--out", out)
    assert (status, text) == (
        2,
        f"error: {out} is there already; name another file, or give --overwrite to replace it.\n",
    )
    status, text = run(tmp_path / "a.txt", "--tokenizer", model, "--out", out, "--overwrite", "--json")
    facts = json.loads(text)
    head = TokenFile(out).head
    assert {name: facts[name] for name in head.model_dump()} == head.model_dump()
    assert (status, head.n_documents, facts["file"], facts["notes"]) == (0, 1, str(out), [])


def test_wrong_paths_are_sentences(tmp_path):
    model = save_tokenizer(tmp_path / "model")
    for arguments, says in {
        (tmp_path / "no*.txt", "--tokenizer", model, "--out", tmp_path / "x"): "error: FILES: no file matches",
        (model / "tokenizer.json", "--tokenizer", tmp_path, "--out", tmp_path / "x"): "tokenizer.json cannot be read",
        (model, "--tokenizer", model, "--out", model, "--overwrite"): f"{model} is a folder; name a file in it",
    }.items():
        status, text = run(*arguments)
        assert (status, says in text) == (2, True), text
