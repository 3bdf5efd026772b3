"""`Config`: a DeepSpeed JSON as one frozen, validated object; `ResolvedConfig`: the same without `"auto"`."""

import os
from collections.abc import Iterable, Mapping
from typing import Literal, Self, overload

from pydantic import PrivateAttr

from jzero.base.types import Json
from jzero.config.resolve import auto
from jzero.config.resolve.auto import HiddenSize
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.building import build
from jzero.config.schema.notes import notes_on
from jzero.config.schema.other_programs import another_program
from jzero.config.schema.section import Trace, fail, given
from jzero.config.schema.top_level import TopLevel
from jzero.config.schema.verdicts import active_keys, show
from jzero.config.sources.load import read_source
from jzero.errors import ConfigError


class Config(TopLevel):
    """A DeepSpeed configuration: `load` reads one, `resolve` makes every value concrete.

    Example:
        >>> config = Config.load({"train_batch_size": 32, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
        >>> resolved = config.resolve(world=8)
        >>> resolved.train_micro_batch_size_per_gpu, resolved.zero_optimization.stage, resolved.precision
        (4, 3, 'bf16')
    """

    _file: str = PrivateAttr("configuration")
    _trace: Trace = PrivateAttr(default_factory=Trace)

    @classmethod
    def load(cls, source: "Source", *, file: str | None = None, notes: Iterable[str] = ()) -> "Config":
        """Reads and validates a configuration; values may still be `"auto"`.

        Args:
            source: The path of a JSON, Hjson or YAML file, the text of a JSON object, a mapping, or a
                Config (returned as it is). Accelerate's configuration is read for the DeepSpeed part in it.
            file: What to call a mapping in messages.
            notes: Sentences on how the mapping came about, for `Config.notes`.

        Returns:
            The configuration as given, frozen.

        Raises:
            ConfigError: One sentence for each thing that is wrong: a file that cannot be read, an unknown key with its
                nearest known name, a value of a wrong type, keys that exclude each other, something that jzero refuses.
        """
        if isinstance(source, Config):
            return source
        data, file, read = read_source(source, file or "configuration")
        if what := another_program(data):
            raise ConfigError(f"{file}: {what}")
        return Config._read(data, file, Trace(notes=[*notes, *read]))

    @classmethod
    def _read(cls, data: Mapping[str, Json], file: str, trace: Trace) -> Self:
        config = build(cls, data, file=file, trace=trace)
        config._file, config._trace = file, trace
        refused = active_keys(config, "refused")
        fail(file, [f"`{trace.name(k.path)}` = {show(k.value)} is refused: {k.verdict.reason}" for k in refused])
        return config

    @overload
    def resolve(
        self,
        *,
        world: int,
        training_arguments: TrainingArguments | None = None,
        hidden_size: HiddenSize = None,
        num_training_steps: int | None = None,
        partly: Literal[False] = False,
    ) -> "ResolvedConfig": ...

    @overload
    def resolve(
        self,
        *,
        world: int,
        training_arguments: TrainingArguments | None = None,
        hidden_size: HiddenSize = None,
        num_training_steps: int | None = None,
        partly: bool,
    ) -> "Config": ...

    def resolve(
        self,
        *,
        world: int,
        training_arguments: TrainingArguments | None = None,
        hidden_size: HiddenSize = None,
        num_training_steps: int | None = None,
        partly: bool = False,
    ) -> "Config":
        """Fills every `"auto"` and derives the batch sizes.

        Args:
            world: Number of devices that take different data.
            training_arguments: What `"auto"` is filled from; also the source of an optimizer when the file has none.
            hidden_size: The model's width, for the sizes that Hugging Face derives from it; a function is only called
                when a size needs it.
            num_training_steps: Optimizer steps of the whole run.
            partly: Leave an `"auto"` that nobody can fill, and batch sizes that nobody gives, as they are.

        Returns:
            Unless `partly`, a `ResolvedConfig`: no `"auto"`, and three batch sizes that are numbers and fit together.

        Raises:
            ConfigError: All values that nobody can fill, all values that contradict the training arguments, or batch
                sizes that do not fit `world`.
        """
        inputs = auto.Inputs(world, training_arguments, hidden_size, num_training_steps, partly)
        data, origins, notes, _ = auto.fill(self, self._trace, inputs, self._file)
        written = self._trace.written
        resolved = (Config if partly else ResolvedConfig)._read(data, self._file, Trace(written=dict(written)))
        resolved._trace = Trace(origins, list(dict.fromkeys([*self._trace.notes, *notes])), written=written)
        return resolved

    def replaced(self, values: Mapping[str, Json], *, origin: str = "given", note: str | None = None) -> "Config":
        """The configuration with other values for some keys, to be resolved (again).

        Args:
            values: By dotted path; sections come into being where they are needed.
            origin: Where these values come from.
            note: A sentence on them, for `notes`.

        Raises:
            ConfigError: The values do not fit the others.

        Example:
            >>> Config.load({"train_batch_size": 8}).replaced({"zero_optimization.stage": 2}).zero_optimization.stage
            2
        """
        data = given(self)
        for path, value in values.items():
            *outer, name = path.split(".")
            place = data
            for key in outer:
                place[key] = dict(place.get(key) or {})
                place = place[key]
            place[name] = value
        written = {path: name for path, name in self._trace.written.items() if path not in values}
        changed = Config._read(data, self._file, Trace(written=dict(written)))
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        changed._trace = Trace(origins, [*self._trace.notes, *([note] if note else [])], written=written)
        return changed

    @property
    def notes(self) -> list[str]:
        """One sentence for each key that is not read as it stands, that has no effect, or that contradicts another."""
        return list(dict.fromkeys([*self._trace.notes, *notes_on(self, self._trace)]))

    @property
    def origins(self) -> Mapping[str, str]:
        """Where the value of each key that is set comes from, by dotted path; `jzero.config.show.report` has others."""
        return self._trace.origins


class ResolvedConfig(Config):
    """A configuration without `"auto"`, whose batch sizes are numbers: what a training step is built from.

    Only `Config.resolve` makes one, so that a type checker sees where a configuration as loaded is handed on instead.

    Example:
        >>> loaded = Config.load({"train_batch_size": 32})
        >>> isinstance(loaded, ResolvedConfig), isinstance(loaded.resolve(world=8), ResolvedConfig)
        (False, True)
    """


Source = str | os.PathLike[str] | Mapping[str, Json] | Config
"""What `Config.load` reads."""
