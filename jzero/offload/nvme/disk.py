"""Plain direct I/O: long sections of files to and from aligned memory, cut into requests that threads make.

The page cache would take the memory that offloading is to spare, and copy every byte once more. A section that is read
is compared with what was written there.
"""

import errno
import mmap
import os
import stat
import zlib
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


def checksum(memory: np.ndarray) -> int:
    """Tells sections apart, u8[n] with n a multiple of `ALIGNMENT`, at the speed of memory.

    Each page is summed up, and the sums are CRC-32's: a page that is lost, moved, old or changed changes it.
    """
    return zlib.crc32(memory.view(np.uint64).reshape(-1, ALIGNMENT // 8).sum(axis=1))


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
        """Fills memory, u8[n], from a section of a file: one that was written as a whole, if any was.

        Raises:
            OffloadError: the disk fails, the file ends before, or holds something else than was written.
        """
        self._transfer(self._readers, os.preadv, file, memory, offset, "read")
        if (written := file.sums.get(offset)) is not None and written != (len(memory), checksum(memory)):
            raise OffloadError(
                f"{file.path} is damaged: the {len(memory)} bytes at {offset} are not what was written; "
                "load a checkpoint, and look after the disk."
            )

    def write(self, file: "File", memory: np.ndarray, offset: int) -> None:
        """Writes memory, u8[n], to a file.

        Raises:
            OffloadError: the disk fails or is full.
        """
        file.sums.pop(offset, None)
        self._transfer(self._writers, os.pwritev, file, memory, offset, "written")
        file.sums[offset] = len(memory), checksum(memory)

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

    Attributes:
        sums: of each section that was written: by its offset, its length and checksum.

    Raises:
        OSError: no such folder, no permission, no space, or what is there is a link or no file.
    """

    def __init__(self, path: Path, n_bytes: int):
        self.path = path
        self.sums: dict[int, tuple[int, int]] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self.handle = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without direct I/O, such as one in memory
                raise
            self.handle = os.open(path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self.handle).st_mode):
                raise OSError(errno.EINVAL, f"{path.name} in it is no file")
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
