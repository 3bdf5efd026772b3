"""What `jzero train` does: a run file becomes an engine, and the engine is driven to the last step.

Every process runs the same steps on its own rows of each batch; only the first one prints and writes metrics.
"""

import functools
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import jax
from jax.sharding import Mesh
from rich.console import Console

from jzero import models
from jzero.base.terminal import escape
from jzero.base.types import Json
from jzero.checkpoint import Checkpoints, read_header
from jzero.config import Config, DataConfig, RunConfig, TrainingArguments
from jzero.config.schema.data import BYTES
from jzero.config.show.display import config_view
from jzero.errors import CheckpointError, ConfigError
from jzero.explain.memory import memory_table
from jzero.launch.agreement import agree, facts_of_process
from jzero.plan.search.auto import resolve_auto
from jzero.schedules import hf_schedule
from jzero.sharding.mesh import mesh_for, n_data_shards
from jzero.start import initialize
from jzero.train.compile_cache import use_compile_cache
from jzero.train.data import VOCAB_SIZE, Corpus, load_corpus
from jzero.train.kept_batch import keeping_batch, tell_sizes
from jzero.train.loop import Loop, Run
from jzero.train.monitor import ConsoleView, JsonLines, MetricWriter, event_writers
from jzero.train.monitor.events import TensorBoardEvents
from jzero.train.resume import LAYER_FORMS, METRICS, Start, check_overwrite, claim, load_start
from jzero.train.signals import interrupts
from jzero.train.watchdog import Watchdog

REMATERIALISED = ("gpt", "llama", "vit")
"""The families whose sizes have `remat`."""


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        step: steps taken in all.
        metrics: the last training metrics, and `validation_loss`.
        checkpoint: the last checkpoint.
        interrupted: stopped before `n_steps`.
        seconds: from the first step's compilation to the end.
        signal: the number of the signal that stopped it, or 0.
        unit: what the loss is per.
    """

    step: int
    metrics: Mapping[str, float]
    checkpoint: Path
    interrupted: bool
    seconds: float
    signal: int = 0
    unit: str = "byte"


def prepare(config: RunConfig, *, base: Path = Path(), mesh: Mesh | None = None) -> Run:
    """Builds everything that a run file names.

    Args:
        config: from `jzero.config.load_run`.
        base: the folder of the run file, which globs are relative to.
        mesh: all devices on the `shard` axis by default.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    agree({**facts_of_process(), **_what_decides(config)})
    config = keeping_batch(config, os.environ, len(jax.devices()) if mesh is None else n_data_shards(mesh))
    arguments, model = config.training_arguments, language_model(config)
    corpus = load_corpus(config.data, base=base, seed=arguments.seed)
    _check_reads(model, corpus)
    corpus = corpus._replace(notes=(*corpus.notes, *strange_tokens(model, corpus)))
    agree({"the text's fingerprint": corpus.fingerprint} if jax.process_count() > 1 else {})
    known: dict[str, Any] = {"training_arguments": arguments, "hidden_size": model.hidden_size}
    facts = {**known, "world": len(jax.devices()) if mesh is None else n_data_shards(mesh)}
    # The schedule may need the number of steps, and that needs the batch size: what is known so far decides that.
    rows = config.deepspeed.resolve(**facts, partly=True).train_batch_size
    what = {"model": model.factory, "loss_fn": model.loss_fn, "sample_batch": corpus.train.batch(0, rows)}
    given = resolve_auto(config.deepspeed, mesh=mesh, **what, **known)
    mesh = mesh_for(given) if mesh is None else mesh
    n_steps, per_epoch = arguments.max_steps, max(1, corpus.train.n_windows // rows)
    if n_steps < 1:
        n_steps = math.ceil(arguments.num_train_epochs * per_epoch)
    deepspeed = given.resolve(**facts, num_training_steps=n_steps, partly=False)
    has_schedule = deepspeed.scheduler is not None and deepspeed.scheduler.type is not None
    use_compile_cache(deepspeed, Path(arguments.output_dir), mesh)
    engine = initialize(
        **what,
        config=deepspeed,
        schedule=None if has_schedule else hf_schedule(_with_rate_of(deepspeed, arguments), n_steps),
        params=model.weights,
        mesh=mesh,
        seed=arguments.seed,
    )
    in_steps = config.model_copy(update={"training_arguments": arguments.with_steps(per_epoch)})
    return Run(engine, corpus, n_steps, in_steps)


def _what_decides(config: RunConfig) -> dict[str, Json]:
    """What a run file must say to all processes alike. Globs may differ: the text they find is compared."""
    return {
        "model": dict(config.model),
        "data": config.data.model_dump(mode="json", exclude={"files": True, "mixture": {"__all__": {"files"}}}),
        "training_arguments": config.training_arguments.model_dump(mode="json", warnings=False),
        "deepspeed": config.deepspeed.model_dump(mode="json", exclude_none=True, warnings=False),
    }


def language_model(config: RunConfig) -> models.BuiltModel:
    """The model of a run file.

    Args:
        config: from `jzero.config.load_run`.

    Raises:
        ConfigError: no such model, or one that cannot read the run file's text.
    """
    model = models.build(_with_remat(config))
    if model.n_labels is not None:
        raise ConfigError(
            f"model.hf {config.model['hf']} classifies rows of text, and jzero train trains models that predict "
            "tokens; use jzero.models.from_hf and jzero.initialize."
        )
    if model.vocab_size is None:
        raise ConfigError(
            f"model.family {models.with_size(config.model)['family']!r} classifies images, and jzero train reads text; "
            "choose a family of language models, such as gpt."
        )
    if model.vocab_size < VOCAB_SIZE and all(part.source in BYTES for part in config.data.parts):
        raise ConfigError(f"model.vocab_size is {model.vocab_size}; byte tokens need at least {VOCAB_SIZE}.")
    if model.seq_len is not None and config.data.seq_len > model.seq_len:
        raise ConfigError(f"data.seq_len {config.data.seq_len} is more than the model.seq_len {model.seq_len}.")
    return model


def _with_remat(config: RunConfig) -> Mapping[str, Json]:
    """The model's sizes, rematerialised if the arguments ask for it and the model says nothing of it."""
    sizes = config.model if "hf" in config.model else models.with_size(config.model)
    if not config.training_arguments.gradient_checkpointing or "remat" in sizes:
        return sizes
    if "hf" not in sizes and sizes.get("family") not in REMATERIALISED:
        raise ConfigError(
            f"training_arguments.gradient_checkpointing: a model of the family {sizes.get('family')!r} has no blocks "
            "to rematerialise; set it to false."
        )
    return {**sizes, "remat": True}


def _check_reads(model: models.BuiltModel, corpus: Corpus) -> None:
    assert model.vocab_size is not None, "a language model"
    if model.vocab_size < corpus.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {model.vocab_size}; the tokenizer of data has {corpus.vocab_size} tokens, and the "
            "model needs at least as many."
        )
    if corpus.full and not model.packs:
        raise ConfigError(
            "this model reads a row from its start to its end, and data has rows in which documents are kept apart, or "
            'not every token counts; choose a family such as gpt or llama, or text with `packing`: "concatenate" and '
            "without `document_mask`."
        )


def strange_tokens(model: models.BuiltModel, corpus: Corpus) -> Iterator[str]:
    """What to say where a published model's weights have learned other ids than those of the text."""
    if model.weights is None:
        return
    folder = model.weights.published.folder
    if corpus.tokenizer is None:
        yield (
            f"The text is read as bytes, and the weights of {folder} have learned the ids of a tokenizer, which mean "
            "something else: make tokens with that tokenizer by `jzero tokenize`, and read them with data.source "
            '"tokens"; or begin with new weights ("weights": false).'
        )
        return
    with suppress(OSError, ValueError):  # not every folder has one
        own = folder / "tokenizer.json"
        if hashlib.sha256(own.read_bytes()).hexdigest() != corpus.tokenizer:
            yield (
                f"The text was made into tokens by another tokenizer than {own}, whose ids the weights have learned; "
                "an export copies that one."
            )


def _with_rate_of(deepspeed: Config, arguments: TrainingArguments) -> TrainingArguments:
    """The arguments with the optimizer's learning rate, which the file may set where the arguments do not."""
    assert deepspeed.optimizer is not None  # the arguments are a source of one
    return arguments.model_copy(update={"learning_rate": deepspeed.optimizer.params.lr})


def describe(run: Run, console: Console) -> None:
    """Prints what will be trained, on what, and what each device holds."""
    engine, config, corpus = run.engine, run.engine.config, run.corpus
    assert isinstance(corpus, Corpus), "that of a run file"
    devices = engine.mesh.devices.ravel()
    kind = "simulated CPU" if devices[0].platform == "cpu" else devices[0].device_kind
    axes = " x ".join(f"{name} {size}" for name, size in engine.mesh.shape.items())
    for name, text in {
        "mesh": f"{axes}: {len(devices)} {kind} device{'s' * (len(devices) > 1)}",
        "model": ", ".join(f"{key} {value}" for key, value in run.config.model.items()),
        "text": f"{_named(run.config.data)}, {corpus.train.n_windows:,} training and {corpus.validation.n_windows:,} "
        f"validation windows of {corpus.train.seq_len} {corpus.unit}",
        "batch": f"{config.train_batch_size} windows = {config.train_micro_batch_size_per_gpu} a device"
        f" x {config.gradient_accumulation_steps} micro-batches x {n_data_shards(engine.mesh)} data shards",
        "run": f"{run.n_steps:,} steps in {config.precision}, ZeRO stage {engine.stage_plan.stage}",
    }.items():
        console.print(f"[bold]{name:>6}[/bold]  {escape(text)}", highlight=False)
    for note in (*corpus.notes, *engine.config.notes):
        console.print(f"[bold]  note[/bold]  {escape(note)}", highlight=False)
    if config.dump_state is True:
        console.print()
        console.print(config_view(config, world=n_data_shards(engine.mesh)), highlight=False)
    console.print()
    console.print(memory_table(engine))
    console.print()


def _named(data: DataConfig) -> str:
    if data.mixture is None:
        return data.source
    return " and ".join(f"{part.weight:g} of {part.source}" for part in data.mixture)


class Begin(TypedDict, total=False):
    """How a run is to begin.

    Attributes:
        resume: a checkpoint to go on from, or a folder of checkpoints, of which the newest is taken. "auto" looks into
            `output_dir`, passes damaged ones over, and starts anew if there is none; what it chose is printed.
        weights: a checkpoint from which a new run takes the parameters.
        overwrite: remove checkpoints that another run left in `output_dir`, where the run is refused otherwise.
    """

    resume: Path | Literal["auto"] | None
    weights: Path | None
    overwrite: bool


def train(run: Run, *, console: Console | None = None, **begin: Unpack[Begin]) -> Result:
    """Trains to the last step, or until it is interrupted.

    Args:
        run: from `prepare`.
        console: where the first process shows progress; none by default.
        **begin: how it begins, see `Begin`; a new run by default.

    Returns:
        How it ended; the state at that point is saved under `output_dir`.

    Raises:
        CheckpointError: if `resume` is no checkpoint of this model, or `output_dir` holds those of another run.
        LossScaleError: if fp16 training diverges.
        SkippedStepsError: if more steps in a row are skipped than the configuration allows.
    """
    engine, arguments = run.engine, run.config.training_arguments
    log = functools.partial(_log, console)
    resume, weights, overwrite = begin.get("resume"), begin.get("weights"), begin.get("overwrite", False)
    agree({f"--{name}": value and str(value) for name, value in begin.items()})
    if overwrite:
        check_overwrite(Path(arguments.output_dir), {"--resume": resume, "--weights": weights})
    with ExitStack() as closing:
        checkpoints = closing.enter_context(_checkpoints(run, log))
        start = load_start(engine, checkpoints.folder, resume, log, now=run.facts, overwrite=overwrite)
        checkpoints.leave_alone(start.others)
        if start.step >= run.n_steps:
            reached = f"{start.checkpoint} is already at step {start.step} of {run.n_steps}"
            raise ConfigError(f"{reached}; raise training_arguments.max_steps.")
        if weights is not None and start.checkpoint is None:
            agree({f"the newest checkpoint of {weights}": read_header(weights)[0].name})
            engine.load_checkpoint(weights, only="params/*", layers=LAYER_FORMS)
        run.feed.go_on(start.saved, start.next_batch, log)
        if jax.process_index() == 0:
            claim(checkpoints.folder, start, log, overwrite=overwrite)
        writers = _writers(run, start, console)
        watchdog = Watchdog(engine.config.jzero.hang_seconds, jax.process_index())
        loop = Loop(run, checkpoints, start, writers, log, watchdog)
        tell_sizes(engine)
        for writer in loop.writers:
            closing.callback(loop.try_to_write, writer.close)
        began = time.monotonic()
        with interrupts(engine.mesh, log) as flags, watchdog, loop.prefetching():
            while loop.step < run.n_steps and not loop.stopped and not loop.enough:
                due = loop.take_step(flags)
                if arguments.eval_steps and loop.step % arguments.eval_steps == 0 and not loop.stopped:
                    due |= loop.evaluate(flags)
                if due or loop.step % arguments.save_steps == 0:
                    loop.save()
            loop.finish(flags)
    seconds = time.monotonic() - began
    interrupted = loop.step < run.n_steps and not loop.enough
    ended = loop.step, loop.latest, checkpoints.path(loop.step), interrupted, seconds, loop.stopped
    return Result(*ended, run.feed.unit)


def _log(console: Console | None, sentence: str) -> None:
    if console is not None:
        console.print(escape(sentence), highlight=False, soft_wrap=True)


def _checkpoints(run: Run, log: Callable[[str], None]) -> Checkpoints:
    arguments, options = run.config.training_arguments, run.engine.config.jzero.checkpoint
    try:
        return Checkpoints(
            run.engine,
            arguments.output_dir,
            max_to_keep=arguments.save_total_limit,
            keep_every=options.keep_every,
            save_minutes=options.save_minutes,
            report=log,
        )
    except CheckpointError as error:
        raise ConfigError(f"training_arguments.output_dir: {error}") from None


def _writers(run: Run, start: Start, console: Console | None) -> list[MetricWriter]:
    """The first process's writers; the others have none."""
    if jax.process_index() != 0:
        return []
    config, arguments = run.engine.config, run.config.training_arguments
    file, resume_at = Path(arguments.output_dir, METRICS), start.step if start.checkpoint is not None else None
    try:
        writers: list[MetricWriter] = [JsonLines(file, run=start.run, resume_at=resume_at)]
    except OSError as error:
        raise ConfigError(f"training_arguments.output_dir: cannot write {file}: {error.strerror}.") from None
    writers += event_writers(config, file.parent, resume_at=resume_at)
    if arguments.report_to and not (config.tensorboard and config.tensorboard.enabled is True):
        folder = Path(arguments.logging_dir or file.parent / "tensorboard")
        try:
            writers.append(TensorBoardEvents(folder, config.train_batch_size, resume_at=resume_at))
        except OSError as error:
            raise ConfigError(f"training_arguments.logging_dir: cannot write {folder}: {error.strerror}.") from None
    if console is not None:
        given = "logging_steps" in arguments.model_fields_set
        every = arguments.logging_steps if given else config.steps_per_print or arguments.logging_steps
        first = arguments.logging_first_step
        writers.append(ConsoleView(console, total=run.n_steps, start=start.step, every=every, first=first))
    return writers
