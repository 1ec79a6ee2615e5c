"""Prints tables, JSON and lines, and reads documents and lines that commands take as arguments."""

from __future__ import annotations

import json
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from schemas import Amount, StreamSpec
from schemas.base import repeats_a_field, shape_fault
from schemas.wire import describe, parse_or_none
from stream.formatting import floor_left

_BORDER_WIDTH, _BORDERED_GAP, _PLAIN_GAP, _INDENT = 4, 3, 2, 2
"""Widths of a table's outer borders, of gaps between columns with and without lines, and of the indent below a row."""

_WIDEST_BORDERED, _WIDEST_PADDING = 200, 24
"""In a pipe or file, a table wider than the first has no borders, and its cells are padded to at most the second."""

MAX_WIDTH: Final = 10_000
"""Width, in columns, of output to a pipe or file; no row needs more."""


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Return a table of at most ``width`` characters a line; cells that do not fit are below their row."""
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if width == MAX_WIDTH and _line_width(widths, _BORDERED_GAP) > _WIDEST_BORDERED:
        return Group(*map(Text, filter(None, [title, *(_pad(row, widths) for row in (columns, *rows))])))
    if _BORDER_WIDTH + _line_width(widths, _BORDERED_GAP) <= width:
        table = Table(title=Text(title, "table.title"), title_justify="left")
        for name, column_width in zip(columns, widths, strict=True):
            table.add_column(Text(name), width=column_width)
        for row in rows:
            table.add_row(*map(Text, row))
        return table
    first_named = next((at for at, name in enumerate(columns) if name), 0)
    fitting = _columns_that_fit(columns, widths, first_named + 1, width)
    lines: list[RenderableType] = [_align_cells(columns, widths, fitting, "table.header")]
    for row in rows:
        lines.append(_align_cells(row, widths, fitting))
        below = [
            f"{columns[at]}: {cell}".removeprefix(": ")
            for at, cell in enumerate(row)
            if cell and at not in fitting
        ]
        lines += [
            Padding(Text(line), (0, 0, 0, _INDENT), expand=False) for line in _join_texts(below, width - _INDENT)
        ]
    return Group(*([Text(title, "table.title")] if title else []), *lines)


def _line_width(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _columns_that_fit(columns: Sequence[str], widths: Sequence[int], kept: int, width: int) -> list[int]:
    """Return the columns to show in one line: the first ``kept`` columns, and others that fit.

    A column without a unique name, such as a second "95 %", stays with the column before it.
    """
    first, units = [*range(kept)], list[list[int]]()
    for at, name in enumerate(columns[kept:], kept):
        if not name or columns.count(name) > 1:
            (units or [first])[-1].append(at)
        else:
            units.append([at])
    while units and (excess := _line_width([widths[at] for at in chain(first, *units)], _PLAIN_GAP) - width) > 0:
        sizes = {at: sum(widths[one] + _PLAIN_GAP for one in unit) for at, unit in enumerate(units)}
        # Move a unit below the row: the narrowest one that is wide enough, or else the widest one.
        wide_enough = [at for at in reversed(sizes) if sizes[at] >= excess]
        units.pop(min(wide_enough, key=sizes.__getitem__) if wide_enough else max(sizes, key=sizes.__getitem__))
    if _line_width([widths[at] for at in first], _PLAIN_GAP) > width:
        del first[kept:]
    return [*chain(first, *units)]


def _align_cells(cells: Sequence[str], widths: Sequence[int], shown: Sequence[int], style: str = "") -> Text:
    return Text((" " * _PLAIN_GAP).join(set_cell_size(cells[at], widths[at]) for at in shown).rstrip(), style)


def _pad(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell + " " * (min(w, _WIDEST_PADDING) - cell_len(cell)) for cell, w in zip(cells, widths, strict=True)
    ]
    return (" " * _PLAIN_GAP).join(padded).rstrip()


def _join_texts(texts: Iterable[str], width: int) -> Iterator[str]:
    """Join texts to lines of at most ``width``; a longer text is one line."""
    line = ""
    for text in texts:
        joined = f"{line}   {text}" if line else text
        if line and cell_len(joined) > width:
            yield line
            joined = text
        line = joined
    if line:
        yield line


class _Console(Console):
    """A console with the width of ``COLUMNS`` or the terminal; lines to a pipe or file are never broken."""

    @property
    def is_piped(self) -> bool:
        """Return True if the output is a pipe or file and ``COLUMNS`` is not set."""
        return _requested_width() is None and not self.file.isatty()

    @property
    def chart_width(self) -> int:
        """Return the width of a chart, also for a pipe or file."""
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
    escaped = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if text.isprintable() else "".join(escaped)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        typer.echo(f"warning: {escape_text(warning)}", err=True)


def say(text: str, *, soft_wrap: bool = False) -> None:
    """Print a line. With ``soft_wrap`` the terminal wraps it, so that a user can copy it as one line."""
    console.print(Text(escape_text(text)), soft_wrap=soft_wrap or console.is_piped)


def show_result(document: BaseModel | dict[str, Any], *lines: str | None, as_json: bool) -> None:
    """Print a document as JSON, or else print the lines; lines that are None are left out."""
    if as_json:
        show_json(document)
        return
    for number, line in enumerate(filter(None, lines)):
        say(line, soft_wrap=number > 0)


def say_progress(text: str) -> None:
    """Print a line on standard error, because standard output has only results."""
    typer.echo(f"· {escape_text(text)}", err=True)


def show_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Print one JSON value on one line, with control characters escaped."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    text = json.dumps(to_jsonable_python(value), ensure_ascii=not encoding.startswith("utf"))
    # Unprintable characters occur only in JSON strings.
    typer.echo(
        "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)
    )


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    optional: Container[str] = (),
    piped_width: int = MAX_WIDTH,
) -> None:
    """Print a table; in a narrow terminal, cells that do not fit beside the first cell are below the row.

    A column named in ``optional`` is left out if all its cells are empty.
    """
    cells = [[escape_text(cell) for cell in row] for row in rows]
    kept = [name not in optional or any(row[at] for row in cells) for at, name in enumerate(columns)]
    columns, cells = [*compress(map(escape_text, columns), kept)], [[*compress(row, kept)] for row in cells]
    width = piped_width if console.is_piped else console.width
    console.print(make_table(escape_text(title), columns, cells, width), width=width)


def format_amount(value: Amount) -> str:
    """Format an amount as ε and δ; under zCDP, format it as ρ and the sum of the streams' ε if it is known."""
    shown = f"ε {value.epsilon:.6g}"
    if value.rho is not None:
        # Earlier versions wrote the ε that ρ and δ imply. It is not a sum, so it is not shown.
        return f"ρ {value.rho:.4g}" if value.delta else f"ρ {value.rho:.4g} ({shown} added up)"
    return f"{shown}, δ {value.delta:.2g}" if value.delta else shown


def format_left(value: Amount) -> str:
    """Format what is left of a budget, rounded down, so that a request for the shown amount fits."""
    digits = {"epsilon": 6, "delta": 2} if value.rho is None else {"epsilon": 6, "rho": 4}
    rounded = {name: floor_left(getattr(value, name), places) for name, places in digits.items()}
    return format_amount(value.model_copy(update=rounded))


def requested_amount(spec: StreamSpec) -> str:
    """Format the ε and δ that a stream requested."""
    return format_amount(Amount(epsilon=spec.epsilon, delta=spec.delta))


Parsed = TypeVar("Parsed")

STANDARD_INPUT: Final = "-"


def parse_document(adapter: TypeAdapter[Parsed], argument: str, name: str = "document") -> Parsed:
    """Parse a JSON document that is given inline, as a file, or as ``-``; errors call an inline document ``name``."""
    document = read_document(argument, name)
    try:
        return adapter.validate_json(document)
    except ValidationError as error:
        raise CommandError(
            f"{document_name(argument, name)}: {describe(error, given=parse_or_none(document))}"
        ) from None


def read_document(argument: str, name: str = "document") -> str:
    """Return a document's text; raise CommandError if it is not JSON, or if a field is given twice."""
    document, place = _read_text(argument, name), document_name(argument, name)
    if not document.lstrip().startswith(("{", "[")):
        raise CommandError(f"{place}: is not JSON; give a JSON object (a source names its table in 'path')")
    if fault := shape_fault(document):
        raise CommandError(f"{place}: {fault}")
    try:
        repeated = repeats_a_field(document)
    except json.JSONDecodeError as error:
        at = f"{place}: is not JSON at line {error.lineno}, column {error.colno}"
        raise CommandError(
            f"{at}; put names and texts in double quotes, and a comma between fields but not after the last"
        ) from None
    except ValueError:
        return document  # the parser reports the fault
    if repeated:
        raise CommandError(f"{place}: a field is given twice; give each field once")
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


def _read_text(argument: str, name: str) -> str:
    if not argument.strip():
        raise CommandError(f"{name}: is empty; give inline JSON, a file, or - for standard input")
    if _is_inline(argument):
        return argument
    try:
        data = sys.stdin.buffer.read() if argument == STANDARD_INPUT else Path(argument).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {argument}: {error.strerror}; give a file, '-' or inline JSON") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(
            f"{document_name(argument)}: is not UTF-8 text; save it as UTF-8 and give it again"
        ) from None
    if not text.strip():
        raise CommandError(f"{document_name(argument)}: is empty; give one JSON document")
    return text


def document_name(argument: str, name: str = "document") -> str:
    """Return a document's name for messages: its file, "standard input", or for an inline document ``name``."""
    if _is_inline(argument):
        return name
    return "standard input" if argument == STANDARD_INPUT else argument


def _is_inline(argument: str) -> bool:
    """Return True if an argument is inline JSON or blank, not a file's name or ``-``."""
    stripped = argument.strip()
    return not stripped or stripped.startswith("{") or (stripped[0], stripped[-1]) == ("[", "]")
