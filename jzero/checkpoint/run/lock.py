"""One writer for a folder: a lock that the system drops when its process dies, with a note of who holds it."""

import contextlib
import json
import os
import socket
import time
import warnings
from pathlib import Path

from pydantic import BaseModel

from jzero.base.files import Text, Whole, kind_of, parse_json
from jzero.errors import CheckpointError

try:
    import fcntl
except ImportError:  # where there is no POSIX
    fcntl = None

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FolderLock:
    """Keeps other runs from writing to a folder.

    The lock is the kernel's (`flock`), so that one left by a killed process is free at once, wherever that process ran;
    the file says who holds it. Where there are no such locks nothing is locked, and a warning says so.

    Args:
        file: the lock file; its folder must exist.
        what: what is being written, for the message.

    Raises:
        CheckpointError: another process holds it, or what lies in its place is a link or no file.
        OSError: the file cannot be made.
    """

    def __init__(self, file: Path, what: Path):
        while True:
            handle = _open(file)
            try:
                if fcntl is None:
                    raise OSError
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 4096)
                os.close(handle)
                raise CheckpointError(
                    f"{what} is being written by another run ({_describe(holder)}); stop it or choose another folder."
                ) from None
            except OSError:
                folder = file.parent  # one sentence for all checkpoints in it
                warnings.warn(f"{folder} cannot be locked: nothing keeps other runs from writing to it.", stacklevel=2)
                break
            if _is_file(handle, file):
                break
            os.close(handle)  # its holder removed it between the two calls
        self._file, self._handle = file, handle
        identity = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(identity).encode())

    def release(self) -> None:
        """Lets others write."""
        if self._handle is not None:
            with contextlib.suppress(OSError):  # its folder may have vanished
                self._file.unlink()
            os.close(self._handle)
            self._handle = None


def _is_file(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _open(file: Path) -> int:
    """Opens the lock file, which may be new; never what a link leads to, for it is written over."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o644)
    except OSError as error:
        if not file.is_symlink():
            raise
        raise _not_a_lock(file, "a link") from error
    if kind := kind_of(os.fstat(handle)):
        os.close(handle)
        raise _not_a_lock(file, kind)
    return handle


def _not_a_lock(file: Path, kind: str) -> CheckpointError:
    return CheckpointError(f"{file} is {kind}, and should be the file that keeps other runs away; remove it.")


class _Holder(BaseModel):
    """What a lock file says."""

    host: Text
    pid: Whole
    since: Text


def _describe(holder: bytes) -> str:
    try:
        found = parse_json(holder, _Holder)
    except ValueError:
        return "unknown to its lock file"
    return f"process {found.pid} on {found.host}, since {found.since}"
