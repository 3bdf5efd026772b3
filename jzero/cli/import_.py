"""`jzero import WEIGHTS CHECKPOINT`: plain weights as a checkpoint that training can begin with."""

from pathlib import Path
from typing import Annotated

import typer

from jzero.base.terminal import printable
from jzero.checkpoint.convert.importing import import_weights, read_rules
from jzero.cli.exits import bad_input_exits
from jzero.config.sources.load import read_object


def import_command(
    weights: Annotated[
        Path, typer.Argument(help="A safetensors or npz file, a torch state dict, or a folder with one of them.")
    ],
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint to write.")],
    model: Annotated[
        Path | None, typer.Option(metavar="RUN.json", help="A run file, for its model.", show_default="as exported")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(metavar="MAP.json", help="What another program calls the weights.")
    ] = None,
) -> None:
    r"""Make a checkpoint of plain weights, for a model that jzero ships.

    A map of names is a JSON list of rules such as
    `{"from": "transformer\\.h\\.(\\d+)\\.mlp\\.c_fc\\.weight", "to": "h.\\1.mlp.fc.kernel", "transpose": true}`;
    the first whose `from` fits the whole name wins, and one without `to` leaves the weight out.

    Examples, ready to copy:

        # what jzero exported, back again, and a training run that begins with it
        jzero import weights runs/pretrained
        jzero train configs/demo.json --weights runs/pretrained

        # the consolidated weights that DeepSpeed's zero_to_fp32 wrote
        jzero import pytorch_model.bin runs/pretrained --model configs/demo.json --names names.json
    """
    with bad_input_exits():
        part = read_object(model).get("model") if model is not None else None
        n_params = import_weights(weights, checkpoint, model=part, rules=read_rules(names) if names else None)
    typer.echo(printable(f"{checkpoint} holds {n_params:,} parameters; train with --weights {checkpoint}"))
