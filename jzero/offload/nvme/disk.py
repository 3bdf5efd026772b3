"""Plain direct I/O: long sections of files to and from aligned memory, cut into requests that threads make.

The page cache would take the memory that offloading is to spare, and copy every byte once more.
"""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jzero.errors import OffloadError

ALIGNMENT = 4096
"""Bytes that sections and memory are multiples of: enough for every disk that there is."""


def aligned(n_bytes: int) -> int:
    """A number of bytes, rounded up so that direct I/O takes it.

    Example:
        >>> aligned(1), aligned(4096)
        (4096, 4096)
    """
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def aligned_memory(n_bytes: int) -> np.ndarray:
    """Memory that direct I/O takes, u8[aligned(n_bytes)]."""
    return np.frombuffer(mmap.mmap(-1, max(aligned(n_bytes), ALIGNMENT)), np.uint8)


class Disk:
    """Makes requests, several at a time; reads and writes do not wait for each other.

    Args:
        block_size: bytes of a request (DeepSpeed key `aio.block_size`), rounded up to a multiple of `ALIGNMENT`.
        depth: requests of one kind under way at once (`aio.queue_depth` times `aio.intra_op_parallelism`).
    """

    def __init__(self, block_size: int, depth: int):
        self._block = aligned(block_size)
        self._readers = ThreadPoolExecutor(depth, "nvme read")
        self._writers = ThreadPoolExecutor(depth, "nvme write")

    def read(self, file: "File", memory: np.ndarray, offset: int) -> None:
        """Fills memory, u8[n], from a file.

        Raises:
            OffloadError: the disk fails, or the file ends before.
        """
        self._transfer(self._readers, os.preadv, file, memory, offset, "read")

    def write(self, file: "File", memory: np.ndarray, offset: int) -> None:
        """Writes memory, u8[n], to a file.

        Raises:
            OffloadError: the disk fails or is full.
        """
        self._transfer(self._writers, os.pwritev, file, memory, offset, "written")

    def _transfer(
        self, threads: ThreadPoolExecutor, call: Callable, file: "File", memory: np.ndarray, offset: int, done: str
    ) -> None:
        def request(start: int) -> None:
            stop = min(start + self._block, len(memory))
            while start < stop:  # the system may do less than it was asked for
                n = call(file.handle, [memory[start:stop]], offset + start)
                if not n:
                    raise OSError(0, "it ends too early")
                start += n

        try:
            list(threads.map(request, range(0, len(memory), self._block)))
        except OSError as error:
            raise OffloadError(f"{file.path} could not be {done}: {error.strerror}.") from error


class File:
    """A file of a fixed size, all of whose space is taken when it is made.

    Args:
        path: of the file, which is made if it is not there.
        n_bytes: its size.

    Raises:
        OSError: no such folder, no permission, no space.
    """

    def __init__(self, path: Path, n_bytes: int):
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self.handle = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
        except OSError as error:
            if error.errno != 22:  # EINVAL: a file system without direct I/O, such as one in memory
                raise
            self.handle = os.open(path, flags, 0o644)
        try:
            os.truncate(self.handle, n_bytes)
            os.posix_fallocate(self.handle, 0, max(n_bytes, 1))
        except OSError:
            self.close()
            raise

    def sync(self) -> None:
        """Waits until what was written would survive a loss of power."""
        os.fdatasync(self.handle)

    def close(self) -> None:
        """Gives the file back to the system."""
        os.close(self.handle)
