"""What processes of a job end with, and what that asks of whatever has started them."""

import signal

MISTAKE = 2
"""Something in a file, an option or the environment is wrong; starting again does not help."""

RESTART_STATUS = 75
"""Starting again may help; what sysexits.h calls a temporary failure."""

PREEMPTED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""It was asked to stop, and has saved."""

NOT_FOUND = 127
"""The command is not there; as shells have it."""


def words_of_status(status: int) -> str:
    """A status of `subprocess`, for people.

    Example:
        >>> words_of_status(-9), words_of_status(2)
        ('was ended by SIGKILL', 'ended with status 2')
    """
    if status >= 0:
        return f"ended with status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-status, f'signal {-status}')}"


def shell_status(status: int) -> int:
    """A status of `subprocess` as a shell has it.

    Example:
        >>> shell_status(-9), shell_status(75)
        (137, 75)
    """
    return status if status >= 0 else 128 - status
