"""The process that reads one table for a service: ``python -m stream.data.reading_process``.

It takes a source and limits on standard input, gives the rows' codes or a refusal on standard output, and ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import IO, Any

from schemas import TableSource
from stream.data.errors import DataError, UnreadableError
from stream.data.parts import Part
from stream.data.pipes import TOO_LARGE, header, row_bytes, write_batch, write_end
from stream.data.places import sheets_of, stamp_of
from stream.data.rows import Coded, RowEncoder
from stream.errors import Missing


def main() -> None:
    """Read one table."""
    request = json.load(sys.stdin)
    _limit(request["reading_bytes"], request["seconds"])
    output = sys.stdout.buffer
    source = TableSource.model_validate(request["source"])
    try:
        if request["wanted"] == "stamp":
            output.write(header({"stamp": stamp_of(source.path)[1:]}))
        else:
            _send(source, request, output)
    except UnreadableError as error:
        output.write(header({"unreadable": error.cause}))
    except Missing as error:
        output.write(header({"unreadable": str(error)}))
    except DataError as error:
        output.write(header({"refused": str(error)}))
    except MemoryError:
        output.write(header({"unreadable": "more memory than SOTTO_TABLE_READING_BYTES"}))
    output.flush()
    # Readers may have threads that wait for whoever reads on.
    os._exit(0)


def _send(source: TableSource, request: dict[str, Any], output: IO[bytes]) -> None:
    encoder = RowEncoder(source)
    for batch in _batches(source, request, encoder):
        write_batch(output, batch)
    people = encoder.people()
    write_end(output, None if people is None else people.names())


def _batches(source: TableSource, request: dict[str, Any], encoder: RowEncoder) -> Iterator[Coded]:
    """The table's batches; a file that says by itself that it holds too much is refused before any of it is unfolded."""
    parts = None if request["parts"] is None else [_part(told) for told in request["parts"]]
    most, rows = request["table_bytes"] // row_bytes(source), 0
    for sheet in sheets_of(source.path, parts, request["reading_bytes"]):
        if rows + (sheet.said_rows() or 0) > most:
            raise UnreadableError(TOO_LARGE)
        for batch in encoder.sheet(sheet):
            rows += len(next(iter(batch.private_codes.values())))
            yield batch


def _part(told: dict[str, Any]) -> Part:
    return Part(told["location"], told["size"], tuple(told["stamp"]), tuple(map(tuple, told["cells"])))


def _limit(memory: int, seconds: float) -> None:
    """Have the operating system stop whatever takes more; a process that is stopped leaves no image of its memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Several threads may take the time of as many processors.
    most = int(seconds) * (os.cpu_count() or 1) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    # Private writable memory, which is what a table unfolds into; programs and mapped files do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


if __name__ == "__main__":
    main()
