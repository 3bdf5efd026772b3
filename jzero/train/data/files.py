"""Which files make up the text: the Python standard library, which every machine has, or files named by globs.

Files come in the order of a hash of their path, and the same hash divides them into training and validation text. So
the order is the same on every machine, neighbours in it are unrelated, and adding a file moves no other one across.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jzero.errors import ConfigError

MAX_BYTES = 8_000_000
"""Text beyond this is left out, so that a run starts in a moment."""

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


def glob_files(patterns: Sequence[str], base: Path) -> list[NamedFile]:
    """The files that match any of some globs.

    Args:
        patterns: globs relative to `base`, or absolute; `**` crosses folders.
        base: the folder of the run file.

    Raises:
        ConfigError: for a pattern that matches no file.
    """
    found: dict[str, NamedFile] = {}
    for pattern in patterns:
        anchor = Path(pattern).anchor
        root = Path(anchor) if anchor else base
        matches = [path for path in root.glob(str(Path(pattern).relative_to(anchor))) if path.is_file()]
        if not matches:
            raise ConfigError(f"data.files: no file matches {pattern!r} in {root.resolve()}.")
        found |= {path.as_posix(): NamedFile(path.relative_to(root).as_posix(), path) for path in matches}
    return sorted(found.values(), key=lambda file: file.draw)


def read_split(files: Iterable[NamedFile], validation_share: float) -> tuple[bytes, bytes]:
    """Reads files up to `MAX_BYTES` and divides them into training and validation text.

    Args:
        files: in the order in which they are read.
        validation_share: the share of the files, by name, that becomes validation text.

    Returns:
        Both texts, files separated by a zero byte. If one of them has no file, as with a single file, the end of the
        text is the validation text.

    Raises:
        ConfigError: if a file cannot be read.
    """
    parts: tuple[list[bytes], list[bytes]] = [], []
    n_bytes = 0
    for file in files:
        try:
            text = file.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"data: cannot read {file.path}: {error.strerror}.") from None
        n_bytes += len(text) + 1
        if n_bytes > MAX_BYTES:
            break
        parts[file.draw < validation_share].append(text + b"\0")
    train, validation = map(b"".join, parts)
    if not train or not validation:
        text = train + validation
        cut = len(text) - int(len(text) * validation_share)
        return text[:cut], text[cut:]
    return train, validation
