"""What connected processes can say to each other beside their devices: before any of them runs a program."""

from typing import NamedTuple

from jax._src import distributed


class Peers(NamedTuple):
    """The processes that are connected.

    Attributes:
        own: this process's number.
        count: how many there are.
    """

    own: int
    count: int


def peers() -> Peers | None:
    """This process among those it is connected with; None for a process that is alone."""
    state = distributed.global_state
    if state.client is None or not state.num_processes or state.num_processes < 2:
        return None
    return Peers(state.process_id, state.num_processes)


def publish(key: str, value: str) -> None:
    """Lets all processes read a text under a key."""
    _client().key_value_set(key, value, allow_overwrite=True)


def wait_for(key: str, seconds: float) -> str | None:
    """The text that a process publishes under a key; None if it does not in so much time."""
    try:
        return _client().blocking_key_value_get(key, int(seconds * 1000))
    except RuntimeError as error:  # JAX has no other class for it
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def _client():
    client = distributed.global_state.client
    assert client is not None
    return client
