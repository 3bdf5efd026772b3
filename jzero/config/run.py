"""The run file of `jzero train`: model, data, training arguments and DeepSpeed part, with command-line overrides."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jzero.base.types import Json
from jzero.config.config import Config
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.building import build
from jzero.config.schema.data import DataConfig
from jzero.config.schema.scalars import Anything
from jzero.config.schema.section import Section, Trace
from jzero.config.sources.load import read_object, read_source
from jzero.errors import ConfigError


class RunConfig(Section):
    """A validated run file.

    `model` holds `family` and the sizes of that family, or `size`, the name of a published model, or `hf`, a folder in
    the format of Hugging Face; the model registry checks it.
    """

    model: Anything
    data: DataConfig = DataConfig()
    training_arguments: TrainingArguments = TrainingArguments()
    deepspeed: Anything

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """The model names its family, and there is a DeepSpeed part."""
        model = values.get("model")
        names = model.get("family", model.get("size", model.get("hf"))) if isinstance(model, Mapping) else None
        if not isinstance(names, str):
            such = '{"family": "gpt"}, a `size` or an `hf`, the folder of a published model'
            yield "model", f"must be an object with a `family`, such as {such}, got {model!r}"
        if not isinstance(deepspeed := values.get("deepspeed"), Mapping):
            yield "deepspeed", f"must be a DeepSpeed configuration or the path of one, got {deepspeed!r}"


def load_run(
    source: str | os.PathLike[str] | Mapping[str, Json], overrides: Sequence[str] = (), *, file: str = "run"
) -> RunConfig:
    """Reads a run file.

    Args:
        source: A JSON or Hjson file with the parts `model`, `data`, `training_arguments` and `deepspeed`, or what such
            a file holds; the last part may be the path of a DeepSpeed JSON or of Accelerate's file, relative to it.
        overrides: Assignments such as `"deepspeed.zero_optimization.stage=2"`, applied before anything is checked.
        file: What to call a mapping in messages.

    Returns:
        The run, whose `deepspeed` is a `Config` that may still hold `"auto"`.

    Raises:
        ConfigError: One sentence for each thing that is wrong.
    """
    if isinstance(source, Mapping):
        data, folder = dict(source), Path()
    else:
        file, data, folder = str(source), read_object(source), Path(source).parent
    deepspeed, deepspeed_file, notes = data.get("deepspeed"), f"{file}, deepspeed", []
    if isinstance(deepspeed, str):
        data["deepspeed"], deepspeed_file, notes = read_source(folder / deepspeed, deepspeed_file)
    data = apply_overrides(data, overrides)
    data["model"] = _with_whole_path(data.get("model"), folder)
    trace = Trace(notes=notes)
    run = build(RunConfig, data, file=file, trace=trace)
    return run.model_copy(update={"deepspeed": Config.load(data["deepspeed"], file=deepspeed_file, notes=trace.notes)})


def _with_whole_path(model: Json, folder: Path) -> Json:
    """A `model` part whose `hf`, relative to the run file, is a path that a checkpoint can name."""
    if not isinstance(model, Mapping) or not isinstance(path := model.get("hf"), str) or path.startswith("hub:"):
        return model
    return {**model, "hf": str((folder / Path(path).expanduser()).absolute())}


def apply_overrides(data: Mapping[str, Json], overrides: Sequence[str]) -> dict[str, Json]:
    """Sets `a.b.c=value` keys in a copy of a mapping; values are read as JSON, and as text where they are no JSON.

    >>> apply_overrides({"model": {"n_layer": 2}}, ["model.n_layer=4", "deepspeed.bf16.enabled=true"])
    {'model': {'n_layer': 4}, 'deepspeed': {'bf16': {'enabled': True}}}
    """
    result = _copy(data)
    for override in overrides:
        path, equals, text = override.partition("=")
        *outer, key = path.strip().split(".")
        if not equals or not key or not all(outer):
            raise ConfigError(f"override {override!r}: write key=value, such as deepspeed.zero_optimization.stage=2")
        place = result
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"override {override!r}: `{name}` is not an object but {place!r}")
        place[key] = _value(text.strip())
    return result


def _value(text: str) -> Json:
    import hjson  # only overrides need it

    try:
        return _copy(hjson.loads(f"[\n{text}\n]"))[0] if text else ""
    except hjson.HjsonDecodeError:
        return text


def _copy(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
