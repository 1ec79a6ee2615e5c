"""What commands print: tables for people, JSON for programs, one line for errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TextIO

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from schemas import Amount, StreamSpec
from stream.cli.tables import WIDEST, table_of


class _Console(Console):
    """As wide as ``COLUMNS`` says, or the terminal. Whoever reads a pipe or a file reads it by lines: there it breaks none."""

    @property
    def is_read_by_lines(self) -> bool:
        """Whether it writes into a pipe or a file, and nobody has said how wide."""
        return _asked_width() is None and not self.file.isatty()

    @property
    def picture_width(self) -> int:
        """The columns of a picture, which has a width wherever it goes."""
        return _asked_width() or super().size.width

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        width = WIDEST if self.is_read_by_lines else self.picture_width
        return ConsoleDimensions(width, super().size.height)


def _asked_width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else None


console = _Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CommandError(Exception):
    """A command cannot go on; the message says what to do."""


def visible(text: str) -> str:
    """A text of one line with what a terminal would obey, or not show, written out: escapes, line ends, directions."""
    return text if text.isprintable() else "".join(map(_visible, text))


def say(text: str, *, soft_wrap: bool = False) -> None:
    """Print a line that may quote what came from elsewhere; with ``soft_wrap`` it can be copied whole from a terminal, too."""
    console.print(Text(visible(text)), soft_wrap=soft_wrap or console.is_read_by_lines)


def show_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Print one JSON value on one line, in which what a terminal would obey is written out."""
    text = json.dumps(_plain(value), ensure_ascii=not _is_unicode(sys.stdout))
    # Whatever is left beside JSON's own signs stands in a string.
    typer.echo("".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text))


def _is_unicode(stream: TextIO | None) -> bool:
    """Whether a stream has all signs in its encoding."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; where the terminal is too narrow for its words, each row below its first cell."""
    cells = [[visible(cell) for cell in row] for row in rows]
    console.print(table_of(console, visible(title), columns, cells))


def amount(value: Amount) -> str:
    """An amount of budget for people: under zCDP ρ, with what the same is by adding up."""
    shown = f"ε {value.epsilon:.6g}"
    if value.rho is not None:
        # Where an older record's ε has a δ it says what ρ implies, and does not add up.
        return f"ρ {value.rho:.4g}" if value.delta else f"ρ {value.rho:.4g} ({shown} added up)"
    return f"{shown}, δ {value.delta:.2g}" if value.delta else shown


def asked(spec: StreamSpec) -> str:
    """The price that a stream was asked for at."""
    return amount(Amount(epsilon=spec.epsilon, delta=spec.delta))


def _visible(sign: str) -> str:
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
