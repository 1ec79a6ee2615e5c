"""What the process that reads a table tells whoever asked it to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from schemas import TableSource
from stream.data.errors import ColumnError, UnreadableError
from stream.data.parts import Part
from stream.data.pipes import TOO_LARGE, header, row_bytes, write_batch, write_end
from stream.data.places import sheets_of, stamp_of
from stream.data.rows import Coded, RowEncoder
from stream.errors import Missing


def send(request: dict[str, Any], output: IO[bytes]) -> None:
    """Write the rows' codes or the stamp of a source's table, or why there are none."""
    source = TableSource.model_validate(request["source"])
    try:
        if request["wanted"] == "stamp":
            output.write(header({"stamp": stamp_of(source.path)[1:]}))
        else:
            _send_rows(source, request, output)
    except UnreadableError as error:
        output.write(header({"unreadable": error.cause, "file": error.file}))
    except Missing as error:
        output.write(header({"unreadable": str(error)}))
    except ColumnError as error:
        output.write(header({"refused": error.told, "file": error.file}))
    except MemoryError:
        output.write(header({"unreadable": "more memory than SOTTO_TABLE_READING_BYTES"}))
    output.flush()


def _send_rows(source: TableSource, request: dict[str, Any], output: IO[bytes]) -> None:
    encoder = RowEncoder(source)
    for batch in _batches(source, request, encoder):
        write_batch(output, batch)
    people = encoder.people()
    write_end(output, None if people is None else people.names())


def _batches(source: TableSource, request: dict[str, Any], encoder: RowEncoder) -> Iterator[Coded]:
    """The table's batches; a file that says by itself that it holds too much is refused before any of it is unfolded."""
    parts = None if request["parts"] is None else [_part(*told) for told in request["parts"]]
    most, rows = request["table_bytes"] // row_bytes(source), 0
    for sheet in sheets_of(source.path, parts, request["reading_bytes"]):
        if rows + (sheet.said_rows() or 0) > most:
            raise UnreadableError(TOO_LARGE)
        for batch in encoder.sheet(sheet):
            rows += len(next(iter(batch.private_codes.values())))
            yield batch


def _part(
    location: str, size: int, stamp: list[int | str], name: str, cells: list[tuple[str, str | None]]
) -> Part:
    return Part(location, size, tuple(stamp), tuple((column, cell) for column, cell in cells), name=name)
