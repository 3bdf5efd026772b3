"""Shows what jzero tells to Python's logging, such as the kernels it chose, on the console of a run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class _OnConsole(logging.Handler):
    def __init__(self, console: Console):
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        sentence = escape(record.getMessage())
        self._console.print(f"[{style}]{sentence}[/]", highlight=False, soft_wrap=True)


@contextmanager
def shown_log(console: Console | None) -> Iterator[None]:
    r"""Shows the log `jzero` from information on while inside; nothing without a console.

    Example:
        >>> import io
        >>> text = io.StringIO()
        >>> with shown_log(Console(file=text)):
        ...     logging.getLogger("jzero").info("compiled the step")
        >>> text.getvalue()
        'compiled the step\n'
    """
    if console is None:
        yield
        return
    log, handler = logging.getLogger("jzero"), _OnConsole(console)
    level, propagate = log.level, log.propagate
    log.setLevel(min(logging.INFO, log.getEffectiveLevel()))
    log.propagate = False  # a library may have given the root logger a handler, and all would be shown twice
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
