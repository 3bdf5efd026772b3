"""One writer for a folder: a lock that the system drops when its process dies, with a note of who holds it."""

import contextlib
import json
import os
import socket
import time
import warnings
from pathlib import Path

from jzero.errors import CheckpointError

try:
    import fcntl
except ImportError:  # where there is no POSIX
    fcntl = None


class FolderLock:
    """Keeps other runs from writing to a folder.

    The lock is the kernel's (`flock`), so that one left by a killed process is free at once, wherever that process ran;
    the file says who holds it. Where there are no such locks nothing is locked, and a warning says so.

    Args:
        file: the lock file; its folder must exist.
        what: what is being written, for the message.

    Raises:
        CheckpointError: another process holds it.
        OSError: the file cannot be made.
    """

    def __init__(self, file: Path, what: Path):
        while True:
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if fcntl is None:
                    raise OSError
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 4096).decode(errors="replace")
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


def _describe(holder: str) -> str:
    try:
        return "process {pid} on {host}, since {since}".format(**json.loads(holder))
    except (ValueError, KeyError):
        return "unknown to its lock file"
