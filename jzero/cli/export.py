"""`jzero export CHECKPOINT OUT`: a checkpoint's weights as safetensors or npz, or with `--hf` as a published model."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jzero.base.terminal import printable
from jzero.checkpoint.convert.exporting import export, parse_bytes
from jzero.checkpoint.convert.hf_export import export_hf
from jzero.cli.exits import bad_input_exits
from jzero.errors import ConfigError


class Format(StrEnum):
    """What is written."""

    safetensors = "safetensors"
    npz = "npz"


class Dtype(StrEnum):
    """Of floating weights."""

    fp32 = "fp32"
    bf16 = "bf16"


def export_command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of them: the newest.")],
    out: Annotated[Path | None, typer.Argument(help="The folder to write to.", show_default=False)] = None,
    format: Annotated[Format, typer.Option(help="One npz file, or safetensors with an index if sharded.")] = (
        Format.safetensors
    ),
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Of floating weights; others keep their own.", show_default="fp32; with --hf as the source"),
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option(help="How long a safetensors file may be, such as 500MB; an npz is always one file.")
    ] = "5GB",
    hf: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write a folder in the format of Hugging Face.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --hf: where the model came from.", show_default="as trained"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace weights that are there.")] = False,
) -> None:
    r"""Write a checkpoint's weights as plain files.

    Names are dotted paths such as `h.0.attn.qkv.kernel`; tied weights are written once. Only one weight is in memory
    at a time.

    Examples, ready to copy:

        # the newest checkpoint of a run
        jzero export runs/demo weights

        # half the size, in files of at most 2 GB, with Hugging Face's index file
        jzero export runs/demo weights --dtype bf16 --max-shard-size 2GB

        # a fine-tuned model as transformers and vLLM open it, with the tokenizer of the one that it came from
        jzero export runs/mine --hf my-model
    """
    with bad_input_exits():
        most = parse_bytes(max_shard_size)
        if hf is not None:
            if out is not None or format is not Format.safetensors:
                raise ConfigError("--hf names the folder to write to, in safetensors; leave out OUT and --format.")
            as_hf = None if dtype is None else dtype.value
            files = export_hf(checkpoint, hf, source=source, dtype=as_hf, max_shard_bytes=most, overwrite=overwrite)
        elif out is None or source is not None:
            raise ConfigError("give the folder to write to as OUT, or with --hf; --source is for --hf.")
        else:
            as_dtype = (dtype or Dtype.fp32).value
            files = export(
                checkpoint, out, format=format.value, dtype=as_dtype, max_shard_bytes=most, overwrite=overwrite
            )
    for file in files:
        typer.echo(f"{printable(str(file))} {file.stat().st_size:,} bytes")
