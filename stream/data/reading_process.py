"""The process that reads one table file for a service: ``python -m stream.data.reading_process``.

It takes a source and limits on standard input, gives the rows' codes or a refusal on standard output, and ends.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from schemas import TableSource
from stream.data.errors import DataError, UnreadableError
from stream.data.files import rows_before_reading
from stream.data.people import NAME_BYTES
from stream.data.reading import header, row_bytes, write_rows
from stream.data.rows import Rows


def main() -> None:
    """Read one table."""
    request = json.load(sys.stdin)
    _limit(request["reading_bytes"], request["seconds"])
    output = sys.stdout.buffer
    source = TableSource.model_validate(request["source"])
    try:
        rows = _load(source, request["table_bytes"])
    except UnreadableError as error:
        output.write(header({"unreadable": error.cause}))
    except DataError as error:
        output.write(header({"refused": str(error)}))
    except MemoryError:
        output.write(header({"unreadable": "more memory than SOTTO_TABLE_READING_BYTES"}))
    else:
        write_rows(output, rows)


def _load(source: TableSource, table_bytes: int) -> Rows:
    """The rows; a file that says by itself that it holds too much is refused before any of it is unfolded."""
    most = table_bytes // row_bytes(source)
    if (rows_before_reading(Path(source.path)) or 0) > most:
        raise UnreadableError("larger than SOTTO_TABLE_BYTES")
    rows = Rows.load(source)
    names = 0 if rows.people is None else rows.people.count * NAME_BYTES
    if rows.private_row_count * row_bytes(source) + names > table_bytes:
        raise UnreadableError("larger than SOTTO_TABLE_BYTES")
    return rows


def _limit(memory: int, seconds: float) -> None:
    """Have the operating system stop whatever takes more; a process that is stopped leaves no image of its memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    # Private writable memory, which is what a table unfolds into; programs and mapped files do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


if __name__ == "__main__":
    main()
