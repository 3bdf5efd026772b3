"""What `jzero plan` is asked about: a run file, or a model by name with what else a run needs."""

from collections.abc import Callable, Sequence

from jzero import models
from jzero.config import RunConfig, load_run
from jzero.errors import ConfigError
from jzero.models import BuiltModel
from jzero.plan.search.workload import RunOptions
from jzero.train.trainer import language_model


def planned_run(arguments: Sequence[str], model: str | None, shorthands: Sequence[str] = ()) -> RunConfig:
    """The run that the command line names.

    Args:
        arguments: the path of a run file, unless there is a model, and changes of the form `key=value`.
        model: a name in `jzero.models.SIZES`; the run is then bf16 with AdamW, one sequence of the model's own length
            for each GPU.
        shorthands: changes that come before those of the arguments.

    Raises:
        ConfigError: there is neither or both, or what they say does not fit.

    Example:
        >>> planned_run(["model.remat=true"], "gpt2").data.seq_len
        1024
    """
    first = next(iter(arguments), None)
    is_file = first is not None and "=" not in first
    if model is None and not is_file:
        raise ConfigError(
            "nothing says what to plan: give a run file, such as configs/demo.json, or --model NAME; names are "
            f"{', '.join(models.SIZES)}."
        )
    if model is None:
        return load_run(arguments[0], [*shorthands, *arguments[1:]])
    if is_file:
        raise ConfigError(f"both the run file {first} and --model {model} say what to plan; give one of them.")
    size = models.with_size({"size": model})
    run = {
        "model": {"size": model},
        "data": {"seq_len": size.get("seq_len", 1)},
        "training_arguments": {"bf16": True, "per_device_train_batch_size": 1},
        "deepspeed": {},
    }
    return load_run(run, [*shorthands, *arguments], file=f"--model {model}")


def plan_options(run: RunConfig, *, n_gpus: int) -> RunOptions:
    """What `jzero.plan.plan` takes, of what `jzero train` would run; and of models of images, which it would not.

    Args:
        run: from `planned_run`.
        n_gpus: the number of GPUs.
    """
    model, arguments = planned_model(run), run.training_arguments
    config = run.deepspeed.model_copy(update={"scheduler": None})
    rows = config.resolve(
        world=n_gpus, training_arguments=arguments, hidden_size=model.hidden_size, partly=True
    ).train_batch_size
    return {
        "model": model.factory,
        "loss_fn": model.loss_fn,
        "config": config,
        "sample_batch": model.batch(rows, run.data.seq_len),
        "n_gpus": n_gpus,
        "rematerialised": _rematerialised(run),
        "training_arguments": arguments,
        "hidden_size": model.hidden_size,
    }


def planned_model(run: RunConfig) -> BuiltModel:
    """The model of a run, which may be one of images.

    Raises:
        ConfigError: there is no such model, or it cannot read the run's text.
    """
    model = models.build(run.model)
    return language_model(run) if model.image is None else model


def _rematerialised(run: RunConfig) -> Callable | None:
    """The model with rematerialised blocks; None where it has them, or where its family has no such option."""
    if run.model.get("remat") or run.deepspeed.jzero.remat or run.training_arguments.gradient_checkpointing:
        return None
    try:
        return models.build({**run.model, "remat": True}).factory
    except ConfigError:
        return None
