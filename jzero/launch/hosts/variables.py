"""Which variables of the environment go to other hosts: a list by prefix, `.deepspeed_env`, and what is asked for."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jzero.errors import ConfigError

PREFIXES = ("CUDA_", "FI_", "HF_", "JAX_", "MLFLOW_", "NCCL_", "PYTHON", "TF_CPP_", "UCX_", "WANDB_", "XLA_")
"""Variables that begin so go to every host."""

NAMES = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TZ")
"""These too."""

OWN = re.compile(
    "CUDA_VISIBLE_DEVICES|JAX_(COORDINATOR|PROCESS|NUM_PROCESSES|LOCAL_DEVICE|PARTITION).*"
    "|PYTHON(HOME|STARTUP|INSPECT|EXECUTABLE)"
)
"""What belongs to one host, or to one process, and is told to each anew."""

FILE = ".deepspeed_env"
"""In the home folder and in the working directory, the latter later; `DS_ENV_FILE` names another."""


def exported(environment: Mapping[str, str], more: Sequence[str] = (), files: Sequence[Path] = ()) -> dict[str, str]:
    """The variables that every host is given, by name.

    Args:
        environment: of the launcher.
        more: `NAME` of one that is there, or `NAME=VALUE`.
        files: of lines `NAME=VALUE`; later ones win.

    Raises:
        ConfigError: a line of a file is wrong, or a variable is not there.

    Example:
        >>> exported({"NCCL_DEBUG": "WARN", "SHELL": "/bin/sh", "CUDA_VISIBLE_DEVICES": "0"}, ["A=1"])
        {'NCCL_DEBUG': 'WARN', 'A': '1'}
    """
    found = {
        name: value
        for name, value in environment.items()
        if (name.startswith(PREFIXES) or name in NAMES) and not OWN.fullmatch(name)
    }
    for file in files:
        found |= _read(file)
    for each in more:
        name, given, value = each.partition("=")
        _check(name, f"--export {each}")
        if not given and name not in environment:
            raise ConfigError(f"--export {name}: there is no such variable here; give its value as {name}=VALUE.")
        found[name] = value if given else environment[name]
    return found


def files_of_variables(environment: Mapping[str, str], home: Path, folder: Path) -> list[Path]:
    """The files of variables that are there, those of the home folder first.

    Args:
        environment: in which `DS_ENV_FILE` may name another file.
        home: the user's folder.
        folder: the working directory.

    Raises:
        ConfigError: the file that `DS_ENV_FILE` names is nowhere.
    """
    named = environment.get("DS_ENV_FILE", "")
    places = dict.fromkeys((base / (named or FILE)).resolve() for base in (home, folder))
    found = [place for place in places if place.is_file()]
    if named and not found:
        raise ConfigError(f"DS_ENV_FILE is {named}, and no such file is in {home} or {folder}.")
    return found


def _read(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{file}: cannot read the file: {why}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not (said := line.strip()) or said.startswith("#"):
            continue
        name, given, value = said.removeprefix("export ").partition("=")
        if not given:
            raise ConfigError(f"{file}, line {number}: {said!r} must be NAME=VALUE.")
        name, value = _check(name.strip(), f"{file}, line {number}"), value.strip()
        if "\0" in value:
            raise ConfigError(f"{file}, line {number}: the value of {name} has a NUL, which no variable can have.")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[name] = value[1:-1] if quoted else value
    return found


def _check(name: str, where: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"{where}: {name!r} cannot be a variable's name; letters, digits and _ make one.")
    return name
