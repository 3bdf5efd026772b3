"""A search for a configuration that is misread: 2,000 mutations of published files, some of them in every run.

Whatever a file holds, there is an answer within seconds: a sentence, or a configuration whose every value stands in the
file, is a default, or is named as something else; and from that the program's schedules and scales can be built.
"""

import contextlib
import io
import json
import random
import re
import signal
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from rich.console import Console

from jzero.config import Config, ResolvedConfig, TrainingArguments
from jzero.config.resolve.batch import NAMES
from jzero.config.resolve.world import candidate_worlds
from jzero.config.schema.section import Section, at
from jzero.config.show.display import config_object, config_view
from jzero.config.show.report import Line, lines
from jzero.errors import ConfigError
from jzero.optim import build_optimizer
from jzero.zero.loss_scale import init_loss_scale
from tests.config.mutate import mutated
from tests.config.test_corpus import FILES

CHUNK = 100
CHUNKS = [0, *(pytest.param(chunk, marks=pytest.mark.full) for chunk in range(1, 20))]
SECONDS = 5
KNOWN: dict[str, Any] = {"training_arguments": TrainingArguments(), "hidden_size": 64, "num_training_steps": 100}


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Ends what does not end by itself."""

    def late(*_: object) -> None:
        raise AssertionError(f"no answer after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_mutated_file_is_answered_in_time_and_read_as_it_is(chunk):
    rng, names = random.Random(f"configurations {chunk}"), sorted(FILES)
    for _ in range(CHUNK):
        text = mutated(FILES[rng.choice(names)], rng)
        try:
            with in_time():
                check(text)
        except Exception as error:
            raise AssertionError(text) from error


def check(text: str) -> None:
    resolved = outcome(text)
    if isinstance(resolved, str):
        assert resolved.isprintable()
        assert len(resolved) < 12_000
        no_dead_end(resolved, json.loads(text))
        return
    file = json.loads(text)
    for note in resolved.notes:
        assert note.isprintable()
        no_dead_end(note, file)
    for line in lines(resolved):
        if not isinstance(line.value, Section):
            has_it(line, file, resolved)
    for path, value in leaves(file):
        is_there(path, value, resolved)
    if resolved.optimizer is not None:
        jax.eval_shape(build_optimizer(resolved).learning_rate, 5)
    jax.eval_shape(lambda: init_loss_scale(resolved))


def outcome(text: str) -> ResolvedConfig | str:
    """What becomes of a file: the configuration, or the sentence."""
    try:
        config = Config.load(text)
        shown(config)
        resolved = resolve(config)
    except ConfigError as error:
        return str(error)
    shown(resolved)
    return resolved


def resolve(config: Config) -> ResolvedConfig:
    """As `jzero config` does it, for a number of devices that fits."""
    for world in candidate_worlds(config):
        with contextlib.suppress(ConfigError):
            return config.resolve(world=world.size, **KNOWN)
    return config.resolve(world=8, **KNOWN)


def shown(config: Config) -> None:
    """Both views of it can be made."""
    json.dumps(config_object(config, world=8)).encode()
    console = Console(file=io.StringIO(), width=80)
    console.print(config_view(config, world=8), highlight=False)


def no_dead_end(sentence: str, file: dict[str, Any]) -> None:
    """A hint names no key that is there."""
    for meant in re.findall(r"did you mean `([^`]*)`", sentence):
        *outer, key = meant.split(".")
        place: Any = file
        for name in outer:
            place = place.get(name) if isinstance(place, dict) else None
        assert not (outer and isinstance(place, dict) and place.get(key) is not None), meant


def has_it(line: Line, file: dict[str, Any], config: Config) -> None:
    """A value that counts as given stands in the file, or a note says what was read; one by default is the schema's."""
    named = any(f"`{line.path}`" in note or f"`{config._trace.name(line.path)}`" in note for note in config.notes)
    if line.origin.startswith("given"):
        assert named or same(line.value, at_path(file, config._trace.name(line.path))), line
    elif line.origin.startswith("default"):
        assert named or line.value in (default(line.path, config), {}) or (line.path in NAMES and line.value == 1), line
    else:
        assert re.match("auto from|derived from|as Apex has it", line.origin), line


def at_path(file: Any, path: str) -> Any:
    """The value of a dotted key, whatever blanks are around its name."""
    for name in path.split("."):
        keys = {str(key).strip(): key for key in file} if isinstance(file, dict) else {}
        file = file[keys[name]] if name in keys else None
    return file


def default(path: str, config: Config) -> Any:
    *outer, name = path.split(".")
    section: Any = config
    for key in outer:
        section = getattr(section, key)
    return type(section).model_fields[name].default


def same(read: Any, written: Any) -> bool:
    """Whether a value is what was written, in the spellings of JSON."""
    if read is None and str(written).lower() in ("inf", "infinity"):
        return True  # of steps_per_print
    if isinstance(read, tuple):
        items = written if isinstance(written, list) else [written]
        return len(read) == len(items) and all(map(same, read, items))
    if isinstance(read, float) and isinstance(written, int):
        written = float(written)
    if read == written or repr(read) == repr(written):  # as of two that are no number
        return True
    return isinstance(read, str) and isinstance(written, str) and read.lower() == written.lower()


def leaves(file: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in file.items():
        where = at(path, key)
        if isinstance(value, dict) and value:
            yield from leaves(value, where)
        elif value is not None:
            yield where, value


def is_there(path: str, value: Any, config: Config) -> None:
    """A value of the file is what holds, or a note names its key, or a key around it."""
    parts = path.split(".")
    around = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    if any(f"`{outer}`" in note for outer in around for note in config.notes):
        return
    written = {config._trace.name(line.path): line.value for line in lines(config, defaults=False)}
    plain = [outer for outer in around if outer in written and not isinstance(written[outer], Section)]
    if not plain:
        assert value in (False, [], {}), path
    elif plain[0] == path and str(value).lower() != "auto":
        assert same(written[path], value), (path, written[path])
