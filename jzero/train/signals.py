"""Ctrl-C, a job scheduler's SIGTERM and the minutes between saves, as flags that all processes read alike.

Processes receive a signal at different steps, but must leave the loop at the same one. So each step brings the flags of
all processes together on the devices, and the answer is read one step later, when it is there without waiting.

Until the first step has been compiled, which may take longer than a scheduler waits, there is nothing to save: SIGTERM
ends the process at once.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.base.interruption import ENDING, second_signal_ends
from jzero.sharding.trees import replicated


class Asked(NamedTuple):
    """What is asked of a training loop after a step.

    Attributes:
        stop: the number of the signal that asks it to stop, or 0.
        save: whether a save is due.
    """

    stop: int
    save: bool


class Interrupts:
    """The flags of a run; made by `interrupts`.

    Attributes:
        signal: the number of the signal that this process has received, or 0.
    """

    def __init__(self, mesh: Mesh):
        self.signal = 0
        self._heed_sigterm: Callable[[], object] | None = None
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._largest = jax.jit(lambda flags: jnp.max(flags, axis=0), out_shardings=replicated(mesh))
        self._unread: jax.Array | None = None

    def begun(self) -> None:
        """From now on SIGTERM asks the loop to stop, as there is something to save."""
        if self._heed_sigterm is not None and not self.signal:
            self._heed_sigterm()
        self._heed_sigterm = None

    def poll(self, save_due: bool) -> Asked:
        """What to do; all processes must call it after each step, and after each batch of an evaluation.

        Args:
            save_due: whether this process finds a save due; one is enough.
        """
        if jax.process_count() == 1:
            return Asked(self.signal, save_due)
        before = self._unread
        own = np.tile(np.array([self.signal, save_due], np.int32), (len(self._sharding.addressable_devices), 1))
        self._unread = self._largest(jax.make_array_from_process_local_data(self._sharding, own))
        if before is None:
            return Asked(0, False)
        stop, save = np.asarray(before)
        if save:
            self._unread = None  # what this step says was found due before the save that follows now
        return Asked(int(stop), bool(save))


@contextmanager
def interrupts(mesh: Mesh, log: Callable[[str], None]) -> Iterator[Interrupts]:
    """Within it, a first signal asks the loop to stop after the current step; a second one ends the program at once.

    SIGTERM does what it did before until `Interrupts.begun` is called.

    Args:
        mesh: of the run.
        log: called with a sentence when a signal arrives.
    """
    flags = Interrupts(mesh)
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield flags
        return
    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        flags.signal = number
        restore()
        again = (
            "press Ctrl-C again to quit without saving" if number == signal.SIGINT else "a second signal ends it now"
        )
        log(f"Stopping after this step and saving; {again}.")

    with second_signal_ends():
        signal.signal(signal.SIGINT, ask)
        flags._heed_sigterm = lambda: signal.signal(signal.SIGTERM, ask)
        try:
            yield flags
        finally:
            restore()
