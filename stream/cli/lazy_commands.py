"""Commands that are imported when they run: ``sotto --help`` lists them without an import."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from stream.optional_packages import explained


class Later(NamedTuple):
    """A command or group by its place, as ``module:name``, and the first paragraph of its help."""

    where: str
    help: str


def group_of(commands: Mapping[str, Later]) -> type[TyperGroup]:
    """Return a group class that lists ``commands`` first, in this order."""

    class Group(TyperGroup):
        listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names of all commands."""
            return [*commands, *super().list_commands(ctx)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return a command; only its name and help while all are listed."""
            later = commands.get(cmd_name)
            if later is None:
                return super().get_command(ctx, cmd_name)
            if self.listing:
                return typer.core.TyperCommand(cmd_name, help=later.help)
            return _load_command(cmd_name, later.where)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            """Write the help without importing a command."""
            self.listing = True
            super().format_help(ctx, formatter)
            self.listing = False

    return Group


def _load_command(name: str, where: str) -> Any:
    module, _, attribute = where.partition(":")
    # Imported objects stay alive: collecting garbage among them takes a fifth of the time.
    gc.disable()
    try:
        with explained():
            found = getattr(import_module(module), attribute)
    finally:
        gc.enable()
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command
