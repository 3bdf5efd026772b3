"""A group of commands whose modules are imported when they are run: a list of commands costs no more than its text."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from jzero.base.interruption import silent_interrupt


class LazyCommand(NamedTuple):
    """Where a command is.

    Attributes:
        module: the module to import.
        function: the function in it that typer makes a command of.
        help: the first line of its docstring, for the list of commands.
        settings: click's, for this command.
    """

    module: str
    function: str
    help: str
    settings: Mapping[str, Any] = MappingProxyType({})

    def load(self, name: str) -> TyperCommand:
        """Imports the module and makes the command, by this name."""
        one = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
        with silent_interrupt():
            module = importlib.import_module(self.module)
        one.command(name, context_settings=dict(self.settings))(getattr(module, self.function))
        return cast(TyperCommand, typer.main.get_command(one))


class LazyGroup(TyperGroup):
    """The group; a subclass has the table of its commands, which is all that a list of them needs."""

    lazy: ClassVar[dict[str, LazyCommand]] = {}

    def __init__(self, **options: Any):
        shown = {name: TyperCommand(name, help=command.help) for name, command in self.lazy.items()}
        super().__init__(**{**options, "commands": shown})

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:
        """Finds the command that the arguments begin with, as click does, and loads it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.lazy:
            command = self.lazy[name].load(name)
        return name, command, rest
