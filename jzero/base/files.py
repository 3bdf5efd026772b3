"""Reading files that others may have written: real files only, no longer than expected, and JSON of a given form.

What is wrong is a `ValueError` or an `OSError` whose `why` completes a sentence such as "FILE cannot be read: ...".
"""

import functools
import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, TypeVar

from pydantic import Field, Strict, TypeAdapter, ValidationError

from jzero.base.types import Json
from jzero.base.units import format_bytes

Form = TypeVar("Form")

PathLike = str | os.PathLike[str]

Whole = Annotated[int, Strict(), Field(ge=0)]
"""A whole number that counts something, in a form."""

Text = Annotated[str, Strict()]
"""A string, in a form."""

MOST_DEPTH = 100
"""How deep lists and objects may lie in each other."""


class TooDeep(ValueError):
    """Lists and objects that lie too deep in each other."""


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_file(path: PathLike) -> IO[bytes]:
    """Opens a file for reading, unless it is a pipe or a device, which might never end.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no file.

    Example:
        >>> open_file("/dev/null")
        Traceback (most recent call last):
        ValueError: it is a device, not a file
    """
    if "\0" in str(path):
        raise ValueError("its name has a NUL in it")
    _check_kind(os.stat(path))  # before it is opened, which a device might notice
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        _check_kind(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except ValueError:
        os.close(handle)
        raise


def kind_of(status: os.stat_result) -> str | None:
    """What there is in the place of a file, such as a named pipe; None if it is one."""
    kind = stat.S_IFMT(status.st_mode)
    return None if kind == stat.S_IFREG else _KINDS.get(kind, "something else")


def _check_kind(status: os.stat_result) -> None:
    if kind := kind_of(status):
        raise ValueError(f"it is {kind}, not a file")


def read_bytes(path: PathLike, most: int) -> bytes:
    """Reads a whole file of at most `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file, or longer.
    """
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than the {format_bytes(most)} that such a file may have")
    return content


def read_json(path: PathLike, form: type[Form], most: int) -> Form:
    """Reads a JSON file of at most `most` bytes.

    Args:
        path: the file.
        form: what it must hold: any type that pydantic knows.
        most: bytes of it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file, longer, no JSON, or of another form.
    """
    return parse_json(read_bytes(path, most), form)


def parse_json(text: bytes | str, form: type[Form]) -> Form:
    """Reads JSON of a given form, in which no object has a key twice.

    Raises:
        ValueError: it is no JSON, or of another form.

    Example:
        >>> parse_json('{"size": 2}', dict[str, Whole])
        {'size': 2}
        >>> parse_json('{"size": -2}', dict[str, Whole])
        Traceback (most recent call last):
        ValueError: `size`: input should be greater than or equal to 0
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_object, parse_int=_int)
    except RecursionError:
        raise TooDeep("its lists and objects lie too deep in each other") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON at line {error.lineno}, column {error.colno}") from None
    return in_form(value, form)


def in_form(value: Json, form: type[Form]) -> Form:
    """Checks what a document holds.

    Raises:
        ValueError: it is of another form, or lies too deep.
    """
    check_depth(value)
    try:
        return _adapter(form).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        says = first["msg"][:1].lower() + first["msg"][1:]
        raise ValueError(f"`{where}`: {says}" if where else says) from None


def check_depth(value: Json) -> None:
    """Refuses lists and objects that lie too deep in each other for what works through them.

    Raises:
        TooDeep: they do.
    """
    layer = [value]
    for _ in range(MOST_DEPTH):
        inner = [x.values() if isinstance(x, dict) else x for x in layer if isinstance(x, dict | list | tuple)]
        layer = [x for xs in inner for x in xs if isinstance(x, dict | list | tuple)]
        if not layer:
            return
    raise TooDeep(f"its lists and objects lie more than {MOST_DEPTH} deep in each other")


def inside(folder: Path, name: str) -> Path:
    """The file that a document in a folder names.

    Raises:
        ValueError: the name leads out of the folder.

    Example:
        >>> inside(Path("weights"), "part-1/a.bin")
        PosixPath('weights/part-1/a.bin')
        >>> inside(Path("weights"), "../a.bin")
        Traceback (most recent call last):
        ValueError: it names '../a.bin', which is no file inside its folder
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"it names {name!r}, which is no file inside its folder")
    return folder / name


def why(error: BaseException) -> str:
    """What went wrong, in a few words and without a full stop."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"it has {twice!r} twice")
    return value


def _int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python reads no more than 4300 digits
        raise ValueError("a number in it has thousands of digits") from None


@functools.cache
def _adapter(form: type[Form]) -> TypeAdapter[Form]:
    return TypeAdapter(form)
