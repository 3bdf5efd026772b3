"""`jzero train RUN.json [KEY=VALUE ...]`: train the model of a run file."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Unpack

import jax
import typer
from rich.console import Console

from jzero.base.terminal import escape, printable
from jzero.cli import launch_flags
from jzero.cli.exits import EXIT_BAD_INPUT, EXIT_SIGNAL
from jzero.cli.launch import launch_command
from jzero.config import RunConfig, TrainingArguments, load_run
from jzero.errors import JzeroError, LaunchError
from jzero.launch import initialize_from_environment, leave_failed
from jzero.launch.statuses import RESTART_STATUS
from jzero.sharding.mesh import simulate_devices
from jzero.train.monitor.log import shown_log
from jzero.train.resume import check_new
from jzero.train.trainer import Begin, Result, describe, prepare, train


def train_command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.json", help="The run file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the run file, by dotted key.", show_default=False),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Simulate this many CPU devices.", show_default="the real devices")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="CHECKPOINT|auto",
            help="Go on from this checkpoint or the newest in this folder; auto: the newest in output_dir, if any.",
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="Begin with the parameters of this checkpoint.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the checkpoints of another run from output_dir, and begin.")
    ] = False,
    hostfile: launch_flags.Hostfile = None,
    num_nodes: launch_flags.NumNodes = None,
    num_gpus: launch_flags.NumGpus = None,
) -> None:
    r"""Train the model of a run file.

    A run file is a JSON object with four parts:

    - `model`: the family and its sizes, such as `{"family": "gpt", "d_model": 128, ...}`, or `{"size": "gpt2"}`
    - `data`: the text; the Python standard library's source, or your own files by glob: text, JSON lines, or token
      files that `jzero tokenize` made
    - `training_arguments`: named as in Hugging Face: `learning_rate`, `max_steps`, `eval_steps`, ...
    - `deepspeed`: a DeepSpeed configuration, or the path of one; `"auto"` is filled from `training_arguments`

    Examples, ready to copy:

        # the demo, on eight simulated devices
        jzero train configs/demo.json --devices 8

        # the same once more, in place of what it left
        jzero train configs/demo.json --devices 8 --overwrite

        # under another ZeRO stage
        jzero train configs/demo.json deepspeed.zero_optimization.stage=2 \
            training_arguments.output_dir=runs/stage2 --devices 8

        # longer, with its results in another folder
        jzero train configs/demo.json training_arguments.max_steps=1000 \
            training_arguments.output_dir=runs/long --devices 8

        # on your own text
        jzero train configs/demo.json data.source=text 'data.files=["/my/**/*.txt"]' \
            training_arguments.output_dir=runs/mine --devices 8

        # on a token file, which `jzero tokenize` made
        jzero train configs/demo.json data.source=tokens 'data.files=["my.tokens"]' model.vocab_size=32000 \
            training_arguments.output_dir=runs/tokens --devices 8

        # Ctrl-C stops after the current step and saves; go on from there
        jzero train configs/demo.json --resume runs/demo/checkpoint-120 --devices 8

        # one process a GPU, on this machine or on those of a file; `jzero launch train ...` has more options
        jzero train run.json --num-gpus 8
        jzero train run.json --hostfile hosts

        # under a scheduler that stops and starts it: go on where it was, wherever that is
        jzero train configs/demo.json --resume auto --devices 8

    Checkpoints and `metrics.jsonl` (one JSON object a line) go to `training_arguments.output_dir`. It is the
    folder of one run: a new run is refused where another one's checkpoints are.
    """
    if hostfile is not None or num_nodes is not None or num_gpus is not None:
        words = _words(run_file, overrides or [], devices=devices, resume=resume, weights=weights, overwrite=overwrite)
        launch_command(words, hostfile=hostfile, num_nodes=num_nodes, num_gpus=num_gpus)
    try:
        if devices is not None:
            simulate_devices(devices)
        config = _join(run_file, overrides or [])
        chosen = "auto" if resume == Path("auto") else resume or _named_by(config.training_arguments)
        result = _train(config, run_file, resume=chosen, weights=weights, overwrite=overwrite)
    except JzeroError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        status = RESTART_STATUS if isinstance(error, LaunchError) else EXIT_BAD_INPUT
        leave_failed(status, str(error))
        raise typer.Exit(status) from None
    if result.interrupted:
        raise typer.Exit(EXIT_SIGNAL + result.signal)


def _named_by(arguments: TrainingArguments) -> Path | None:
    """The checkpoint that the run file itself goes on from."""
    named = arguments.resume_from_checkpoint
    return Path(arguments.output_dir) if named is True else Path(named) if named else None


def _words(run_file: Path, overrides: list[str], **options: object) -> list[str]:
    """The command of each process, where several are started."""
    words = ["train", str(run_file), *overrides]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


_TELLING_SECONDS = 60.0
"""How long a process that has found a mistake waits for others, to tell them."""


def _join(run_file: Path, overrides: list[str]) -> RunConfig:
    """The run file, which says how long to wait for other processes; they hear of it if it is wrong only here."""
    try:
        config = load_run(run_file, overrides)
    except JzeroError:
        with suppress(LaunchError):  # what is wrong in the file matters more than who has not come
            initialize_from_environment(timeout=_TELLING_SECONDS)
        raise
    initialize_from_environment(timeout=config.training_arguments.ddp_timeout)
    return config


def _train(config: RunConfig, run_file: Path, **begin: Unpack[Begin]) -> Result:
    if begin.get("resume") is None:  # also at its start; here before a large model is made
        check_new(Path(config.training_arguments.output_dir), overwrite=begin.get("overwrite", False))
    console = Console() if jax.process_index() == 0 else None
    with shown_log(console):
        run = prepare(config, base=run_file.parent)
        if console is not None:
            describe(run, console)
        result = train(run, console=console, **begin)
    if console is not None:
        console.print(escape(_closing(result)), highlight=False, soft_wrap=True)
    return result


def _closing(result: Result) -> str:
    """The last lines of a run."""
    ended = "Interrupted" if result.interrupted else "Done"
    loss = result.metrics.get("validation_loss")
    reached = "" if loss is None else f", validation loss {loss:.3f} nats per {result.unit}"
    lines = [
        f"{ended} after step {result.step} in {result.seconds:.0f} s{reached}.",
        f"Checkpoint {result.checkpoint}, metrics {result.checkpoint.parent / 'metrics.jsonl'}.",
    ]
    if result.interrupted:
        lines.append(f"Go on with --resume {result.checkpoint}.")
    return "\n".join(lines)
