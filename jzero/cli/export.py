"""`jzero export CHECKPOINT OUT`: a checkpoint's weights as safetensors or npz."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jzero.base.terminal import printable
from jzero.checkpoint.convert.exporting import export, parse_bytes
from jzero.cli.exits import bad_input_exits


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
    out: Annotated[Path, typer.Argument(help="The folder to write to.")],
    format: Annotated[Format, typer.Option(help="One npz file, or safetensors with an index if sharded.")] = (
        Format.safetensors
    ),
    dtype: Annotated[Dtype, typer.Option(help="Of floating weights; others keep their own.")] = Dtype.fp32,
    max_shard_size: Annotated[
        str, typer.Option(help="How long a safetensors file may be, such as 500MB; an npz is always one file.")
    ] = "5GB",
) -> None:
    r"""Write a checkpoint's weights as plain files.

    Names are dotted paths such as `h.0.attn.qkv.kernel`; tied weights are written once. Only one weight is in memory
    at a time.

    Examples, ready to copy:

        # the newest checkpoint of a run
        jzero export runs/demo weights

        # half the size, in files of at most 2 GB, with Hugging Face's index file
        jzero export runs/demo weights --dtype bf16 --max-shard-size 2GB
    """
    with bad_input_exits():
        files = export(
            checkpoint, out, format=format.value, dtype=dtype.value, max_shard_bytes=parse_bytes(max_shard_size)
        )
    for file in files:
        typer.echo(f"{printable(str(file))} {file.stat().st_size:,} bytes")
