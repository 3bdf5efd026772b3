"""Which files make up the text: the Python standard library, which every machine has, or files named by globs.

Files come in the order of a hash of their path, and the same hash divides them into training and validation text. So
the order is the same on every machine, neighbours in it are unrelated, and adding a file moves no other one across.
"""

import hashlib
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jzero.errors import ConfigError

_WILD = re.compile(r"[*?[]")
_NOT_TEXT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "encodings", "pydoc_data"}


class NamedFile(NamedTuple):
    """A file and the name by which it is ordered and divided."""

    name: str
    path: Path

    @property
    def draw(self) -> float:
        """A number in [0, 1) that depends on the name alone."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) / 2**64


def stdlib_files() -> list[NamedFile]:
    """The `.py` files of the running Python's standard library, without its tests and character tables.

    Raises:
        ConfigError: if there are none, as in a Python that keeps its library in a zip file.

    Example:
        >>> "json/decoder.py" in {file.name for file in stdlib_files()}
        True
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _NOT_TEXT and not f.startswith("config-")]
        paths = [Path(folder, name) for name in names if name.endswith(".py")]
        found += [NamedFile(path.relative_to(root).as_posix(), path) for path in paths]
    if not found:
        raise ConfigError(f"data.source is stdlib, but {root} holds no .py files; give data.files instead.")
    return sorted(found, key=lambda file: file.draw)


def glob_files(patterns: Sequence[str], base: Path, what: str = "data.files") -> list[NamedFile]:
    """The files that match any of some globs, each once.

    A file is named relative to the part of the pattern that has no wildcards, so that its name is the same wherever the
    text lies. One that several patterns match has the name that the first of them gives it.

    Args:
        patterns: globs relative to `base`, or absolute; `**` crosses folders. The path of a file stands for that file,
            even if it has characters that a glob reads otherwise.
        base: the folder of the run file.
        what: gives the patterns, for messages.

    Raises:
        ConfigError: for a pattern that matches no file.
    """
    found: dict[str, NamedFile] = {}
    for pattern in patterns:
        root, glob = _divided(pattern, base)
        try:
            matches = [root / glob] if (root / glob).is_file() else [path for path in root.glob(glob) if path.is_file()]
        except (ValueError, IndexError, NotImplementedError, OSError) as error:  # "**x", "", "/"
            raise ConfigError(f"{what}: {pattern!r} is no glob ({error}).") from None
        if not matches:
            raise ConfigError(f"{what}: no file matches {pattern!r} in {base.resolve()}.")
        for name, path in sorted((path.relative_to(root).as_posix(), path) for path in matches):
            found.setdefault(os.path.abspath(path), NamedFile(name, path))
    return sorted(found.values(), key=lambda file: file.draw)  # files of one name stay in the order of the patterns


def _divided(pattern: str, base: Path) -> tuple[Path, str]:
    """The folder in which a glob looks, without wildcards, and what follows it."""
    whole = base / pattern
    if whole.is_file():
        return whole.parent, whole.name
    parts = Path(pattern).parts
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    return base.joinpath(*parts[:fixed]), str(Path(*parts[fixed:]))
