"""`jzero tokenize FILES... --tokenizer PATH --out FILE`: a token file of text, JSON lines or parquet."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jzero.base.files import why
from jzero.base.terminal import escape
from jzero.cli.exits import bad_input_exits
from jzero.errors import ConfigError
from jzero.train.data.files import glob_files
from jzero.train.data.tokenizer import Tokenizer
from jzero.train.data.tokenizing import Made, tokenize_files


def tokenize_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Paths or globs; `**` crosses folders.", show_default=False)
    ],
    tokenizer: Annotated[
        Path, typer.Option(metavar="PATH", help="A tokenizer.json, or a model's folder with one.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The token file to write.", show_default=False)],
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The field of a record that has the text.", show_default="see above"),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Ends each document.", show_default="as tokenizer_config.json says"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    r"""Make a token file of text, JSON lines or parquet, to train on.

    Files that end with `.jsonl`, `.ndjson` or `.parquet`, and folders that `datasets` saved, have records: objects
    with a `text` (or what `--field` names), with `prompt` and `completion`, or with `messages`, of which the
    tokenizer's chat template makes text. Where there are prompts or messages, answers alone count in the loss. Any
    other file is one document of UTF-8 text.

    A run file reads the result as `"data": {"source": "tokens", "files": ["FILE"]}`. The file gets its name when it is
    complete.

    Examples, ready to copy:

        # every text file of a folder
        jzero tokenize 'corpus/**/*.txt' --tokenizer models/llama --out corpus.tokens

        # the field "content" of JSON lines
        jzero tokenize data.jsonl --field content --tokenizer tokenizer.json --out data.tokens

        # chats, with the tokenizer's own template
        jzero tokenize chats.jsonl --tokenizer models/llama --out chats.tokens --json
    """
    began = time.monotonic()
    with bad_input_exits():
        _check_out(out, overwrite)
        paths = _paths(files)
        encoder = Tokenizer(tokenizer, eos=eos)
        console = Console(stderr=True)
        with _progress(console) as bar:
            task = bar.add_task("", total=len(paths), tokens=0, documents=0)
            made = tokenize_files(
                paths,
                encoder,
                out,
                field=field,
                progress=lambda done, tokens, documents: bar.update(
                    task, completed=done, tokens=tokens, documents=documents
                ),
            )
    seconds = time.monotonic() - began
    if as_json:
        facts = {"file": str(out), "seconds": round(seconds, 3), "notes": list(made.notes), "n_empty": made.n_empty}
        facts |= {"n_counted": made.n_counted}
        typer.echo(json.dumps({**facts, **made.head.model_dump()}, indent=2))
    else:
        _say(made, out, len(paths), seconds)


def _check_out(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} is there already; name another file, or give --overwrite to replace it.")
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file in it, such as {out / 'corpus.tokens'}.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {why(error)}.") from None


def _paths(files: list[str]) -> list[Path]:
    """Saved datasets, and the files that match; the order does not depend on the machine."""
    folders = [Path(name) for name in files if Path(name).is_dir()]
    patterns = [name for name in files if not Path(name).is_dir()]
    return folders + [file.path for file in glob_files(patterns, Path(), "FILES")]


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("files"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _say(made: Made, out: Path, n_files: int, seconds: float) -> None:
    head, console = made.head, Console()
    lines = [
        f"{out}: {head.n_tokens:,} tokens ({head.dtype}) in {head.n_documents:,} documents from {n_files:,} "
        f"file{'s' * (n_files > 1)}, in {seconds:.1f} s.",
        *made.notes,
        f"{made.n_counted:,} of the tokens count in the loss." if head.counted else "",
    ]
    for line in filter(None, lines):
        console.print(escape(line), highlight=False, soft_wrap=True)
