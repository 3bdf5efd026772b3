"""Names and paths as a terminal may see them: what is in them is shown, and neither obeyed nor taken for markup."""

from rich.markup import escape as _without_markup


def printable(text: str) -> str:
    r"""Text in which characters that a terminal would obey or not show are written as Python writes them.

    Example:
        >>> print(printable("runs/\x1b[31mred\u202e"))
        runs/\x1b[31mred\u202e
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def escape(text: str) -> str:
    r"""The same for what rich prints, which then stands there as it is, square brackets included.

    Example:
        >>> escape("runs/[bold]x")
        'runs/\\[bold]x'
    """
    return _without_markup(printable(text))
