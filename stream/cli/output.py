"""Prints tables, JSON and lines, and reads documents and lines that commands take as arguments."""

from __future__ import annotations

import json
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from schemas import Amount, StreamSpec
from schemas.json_limits import repeats_a_field, shape_fault
from schemas.wire import describe, parse_or_none

_BORDER_WIDTH, _COLUMN_GAP = 4, 3
"""Widths of a table's outer border with its padding, and of the gap between two columns."""

MAX_WIDTH: Final = 10_000
"""Columns of output to a pipe or file: more than any row needs."""


def make_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> RenderableType:
    """Return a table at most ``width`` columns wide, or one labeled line for each cell if none fits."""
    cells = [[Text(cell) for cell in row] for row in rows]
    widths = _widths(
        console, [[Text(name), *column] for name, *column in zip(columns, *cells, strict=True)], width
    )
    if widths is None:
        return Group(Text(title, "table.title"), *(_labeled_lines(columns, row) for row in cells))
    table = Table(title=Text(title, "table.title"), title_justify="left")
    for name, column_width in zip(columns, widths, strict=True):
        table.add_column(name, width=column_width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _widths(console: Console, columns: Sequence[Sequence[Text]], width: int) -> list[int] | None:
    """Return the columns' widths; None if the table fits into ``width`` only with words cut."""
    wide = console.options.update(max_width=MAX_WIDTH)
    wanted = [[Measurement.get(console, wide, cell) for cell in column] for column in columns]
    least = [max(cell.minimum for cell in column) for column in wanted]
    widths = [max(cell.maximum for cell in column) for column in wanted]
    room = width - _BORDER_WIDTH - _COLUMN_GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        # Narrow the widest column that can still break between words.
        widest = max(
            (index for index in range(len(widths)) if widths[index] > least[index]), key=widths.__getitem__
        )
        widths[widest] -= 1
    return widths


def _labeled_lines(columns: Sequence[str], row: Sequence[Text]) -> RenderableType:
    first, *rest = row
    width = max(map(len, columns[1:]), default=0)
    lines = [
        Text(f"{name:<{width}}  ").append_text(cell)
        for name, cell in zip(columns[1:], rest, strict=True)
        if cell.plain
    ]
    return Group(first, *(Padding(line, (0, 0, 0, 2), expand=False) for line in lines))


class _Console(Console):
    """A console as wide as ``COLUMNS`` or the terminal. Lines to a pipe or file are never broken."""

    @property
    def is_piped(self) -> bool:
        """Return True if the output is a pipe or file and ``COLUMNS`` is not set."""
        return _requested_width() is None and not self.file.isatty()

    @property
    def chart_width(self) -> int:
        """Return the width of a chart, which needs one in a pipe or file too."""
        return _requested_width() or super().size.width

    @property  # type: ignore[misc]  # read-only here
    def size(self) -> ConsoleDimensions:
        """Return columns and lines."""
        width = MAX_WIDTH if self.is_piped else self.chart_width
        return ConsoleDimensions(width, super().size.height)


def _requested_width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else None


console = _Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CommandError(Exception):
    """A command cannot continue; the message names the remedy."""


def escape_text(text: str) -> str:
    """Return the text on one line with control and invisible characters escaped."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def say(text: str, *, soft_wrap: bool = False) -> None:
    """Print a line. With ``soft_wrap`` the terminal wraps it, so that a user can copy it as one line."""
    console.print(Text(escape_text(text)), soft_wrap=soft_wrap or console.is_piped)


def say_progress(text: str) -> None:
    """Print a line on standard error: standard output has only results."""
    typer.echo(f"· {escape_text(text)}", err=True)


def show_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Print one JSON value on one line, with control characters escaped."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    text = json.dumps(_to_json_value(value), ensure_ascii=not encoding.startswith("utf"))
    # Unprintable characters occur only in JSON strings.
    typer.echo(
        "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)
    )


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, piped_width: int = MAX_WIDTH
) -> None:
    """Print a table; in a narrow terminal, each row as labeled lines below its first cell."""
    cells = [[escape_text(cell) for cell in row] for row in rows]
    width = piped_width if console.is_piped else console.width
    console.print(make_table(console, escape_text(title), columns, cells, width), width=width)


def format_amount(value: Amount) -> str:
    """Format an amount as ε and δ; under zCDP as ρ, with the sum of the streams' ε if it is known."""
    shown = f"ε {value.epsilon:.6g}"
    if value.rho is not None:
        # Earlier versions wrote the ε that ρ and δ imply. It is no sum, so it is not shown.
        return f"ρ {value.rho:.4g}" if value.delta else f"ρ {value.rho:.4g} ({shown} added up)"
    return f"{shown}, δ {value.delta:.2g}" if value.delta else shown


def requested_amount(spec: StreamSpec) -> str:
    """Format the ε and δ that a stream requested."""
    return format_amount(Amount(epsilon=spec.epsilon, delta=spec.delta))


def _escape_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _to_json_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    return value


Parsed = TypeVar("Parsed")

STANDARD_INPUT: Final = "-"


def read_as(kind: TypeAdapter[Parsed], argument: str) -> Parsed:
    """Parse a JSON document that is given inline, as a file, or as ``-`` for standard input."""
    document = read_document(argument)
    try:
        return kind.validate_json(document)
    except ValidationError as error:
        raise CommandError(
            f"{document_name(argument)}: {describe(error, given=parse_or_none(document))}"
        ) from None


def read_document(argument: str) -> str:
    """Return a document's text; CommandError if a field is given twice."""
    document = _read_text(argument)
    if fault := shape_fault(document):
        raise CommandError(f"{document_name(argument)}: {fault}")
    try:
        repeated = repeats_a_field(document)
    except ValueError:
        return document  # the parser reports the fault
    if repeated:
        raise CommandError(f"{document_name(argument)}: a field is given twice; give each field once")
    return document


@contextmanager
def numbered_lines(argument: str) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Open a file, or standard input for ``-``, as numbered lines from 1; blank lines are skipped."""
    if argument == STANDARD_INPUT:
        yield _number_lines(sys.stdin.buffer)
        return
    try:
        with Path(argument).open("rb") as file:
            yield _number_lines(file)
    except OSError as error:
        raise CommandError(
            f"cannot read {argument}: {error.strerror}; give a file, or - for standard input"
        ) from None


def _number_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, raw_line in enumerate(file, 1):
        if line := (raw_line if number > 1 else raw_line.removeprefix(BOM_UTF8)).strip():
            yield number, line


def _read_text(argument: str) -> str:
    if not argument.strip():
        raise CommandError("document: is empty; give inline JSON, a file, or - for standard input")
    if _is_inline(argument):
        return argument
    try:
        data = sys.stdin.buffer.read() if argument == STANDARD_INPUT else Path(argument).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {argument}: {error.strerror}; give a file, '-' or inline JSON") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(
            f"{document_name(argument)}: is not UTF-8 text; save it as UTF-8 and give it again"
        ) from None


def document_name(argument: str) -> str:
    """Return a document's name for messages: its file, "document" or "standard input"."""
    if _is_inline(argument):
        return "document"
    return "standard input" if argument == STANDARD_INPUT else argument


def _is_inline(argument: str) -> bool:
    """Return True if an argument is inline JSON or blank, not a file's name or ``-``."""
    stripped = argument.strip()
    return not stripped or stripped.startswith("{") or (stripped[0], stripped[-1]) == ("[", "]")
