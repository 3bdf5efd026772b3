"""Reading ahead and writing behind: three stations that groups pass through, each one at a time.

Groups do not depend on each other, so each is taken through by a thread of its own; while one is updated, others are
read and written.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Buffer = TypeVar("Buffer")


def run_stations(
    items: Iterable[Item], buffers: Sequence[Buffer], stations: Sequence[Callable[[Item, Buffer], None]]
) -> None:
    """Takes each item through all stations, in a buffer that it keeps until it is through.

    Args:
        items: what is to be done.
        buffers: as many items are under way at once.
        stations: `station(item, buffer)`, each called by one thread at a time.

    Raises:
        Exception: the first that a station raised; what has not begun by then is left alone.

    Example:
        >>> done = []
        >>> run_stations([1, 2], [[0], [0]], [lambda i, b: b.append(i), lambda i, b: done.append(b.pop())])
        >>> sorted(done)
        [1, 2]
    """
    free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
    for buffer in buffers:
        free.put(buffer)
    locked = [(threading.Lock(), station) for station in stations]
    failed = threading.Event()

    def pass_through(item: Item) -> None:
        buffer = free.get()
        try:
            for lock, station in locked:
                with lock:
                    if failed.is_set():
                        return
                    station(item, buffer)
        except BaseException:
            failed.set()
            raise
        finally:
            free.put(buffer)

    with ThreadPoolExecutor(len(buffers), "nvme group") as threads:
        under_way = [threads.submit(pass_through, item) for item in items]
        done, _ = wait(under_way, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
