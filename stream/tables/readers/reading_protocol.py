"""The protocol by which a reading process sends a table to its service, over a pipe.

The service verifies everything that it receives, because a malicious file may control the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import isclass
from select import PIPE_BUF, POLLIN, POLLOUT, poll
from time import monotonic
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import MAX_TEXTS, TableSource
from stream.errors import Missing
from stream.optional_packages import pl
from stream.tables.encoding import CodeArray, Words, code_type
from stream.tables.engine_limits import PERSON_BYTES, CancelledStepError, is_step_cancelled, row_bytes
from stream.tables.readers.source_parts import base_columns, open_source_parts, open_table_parts, stamp_of_source
from stream.tables.readers.table_files import TableFile
from stream.tables.readers.table_parts import FilePart
from stream.tables.rows import Collected, Collector, EncodedBatch, RowEncoder, columns_of
from stream.tables.schema_proposals import MAX_COLUMNS, ColumnType
from stream.tables.table_errors import COLUMN_ERRORS, LARGER_THAN_MEMORY, ColumnError, UnreadableError, to_one_line
from stream.tables.texts import TEXT_BYTES, TEXT_CODE, join_texts, split_texts

_HEADER_BYTES: Final = 4 << 20
_POLL_MS: Final = 100
_MAX_BATCH_ROWS: Final = 1 << 24


@cache
def _type_names() -> frozenset[str]:
    types = filter(isclass, vars(import_module("polars")).values())
    return frozenset({"", *(one.__name__ for one in types if issubclass(one, pl.DataType))})


def encode_header(fields: dict[str, object]) -> bytes:
    """Encode a header: its length in 4 bytes, then its fields as JSON."""
    data = json.dumps(fields).encode()
    return len(data).to_bytes(4, "little") + data


def write_batch(pipe: IO[bytes], batch: EncodedBatch) -> None:
    """Send a batch: a header with its numbers of rows, then the columns' bytes."""
    rows = len(next(iter(batch.private_codes.values())))
    pipe.write(encode_header({"rows": rows, "file_rows": batch.file_row_count, "unnamed": batch.private_unnamed}))
    for column in (*batch.private_codes.values(), *batch.private_texts.values()):
        pipe.write(np.ascontiguousarray(column).view(np.uint8).data)
    if batch.private_numbers is not None:
        pipe.write(np.ascontiguousarray(batch.private_numbers, dtype="<u4").view(np.uint8).data)


def write_end(pipe: IO[bytes], name_digests: Words | None, texts: Mapping[str, tuple[bytes, ...]]) -> None:
    """Send the end of a table: the texts of each text attribute, then the digests of people's names."""
    counts = (
        {"texts": [[len(column_texts), sum(map(len, column_texts))] for column_texts in texts.values()]}
        if texts
        else {}
    )
    pipe.write(encode_header({"people": 0 if name_digests is None else len(name_digests), **counts}))
    for column_texts in texts.values():
        lengths, content = join_texts(column_texts)
        pipe.write(lengths.tobytes() + content)
    if name_digests is not None:
        pipe.write(np.ascontiguousarray(name_digests, dtype="<u8").view(np.uint8).data)
    pipe.flush()


class TimedPipe:
    """The service's end of a pipe, with a deadline, because the other process may never answer.

    After the deadline the methods raise TimeoutError; if the partition is given up, they raise CancelledStepError. They
    use the file descriptor directly, so nothing else may use the file object.
    """

    def __init__(self, pipe: IO[bytes], deadline: float) -> None:
        """Set the deadline as a time of ``monotonic``."""
        self._pipe = pipe.fileno()
        self._deadline = deadline

    def readinto(self, view: memoryview) -> int:
        """Read some bytes and return their number, which is 0 at the end of the pipe."""
        self._wait(POLLIN)
        return os.readv(self._pipe, [view])

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        for start in range(0, len(data), PIPE_BUF):
            # A pipe that is ready for writing has room for PIPE_BUF bytes.
            self._wait(POLLOUT)
            os.write(self._pipe, data[start : start + PIPE_BUF])

    def _wait(self, event: int) -> None:
        ready = poll()
        ready.register(self._pipe, event)
        while True:
            if is_step_cancelled():
                raise CancelledStepError
            if (left := self._deadline - monotonic()) <= 0:
                raise TimeoutError
            if ready.poll(min(_POLL_MS, left * 1000)):
                return


def receive_header(pipe: TimedPipe, source: TableSource) -> dict[str, Any]:
    """Read a header.

    Raises UnreadableError or ColumnError if the header is a refusal, and EOFError or another error if it is invalid. A
    refusal may be published, so its kind of error, its column and its type must be known. The cause and the file's
    name are only for the service's log and for trusted callers.
    """
    length = int.from_bytes(_read_items(pipe, 4), "little")
    if length > _HEADER_BYTES:
        raise EOFError
    fields = json.loads(_read_items(pipe, length).tobytes())
    file = to_one_line(str(fields.get("file", "")))
    if "unreadable" in fields:
        raise UnreadableError(to_one_line(str(fields["unreadable"])), file=file)
    if "refused" in fields:
        wrong, column, kind = fields["refused"]
        known = {*columns_of(source), *base_columns(source)}
        if wrong not in COLUMN_ERRORS or column not in known or kind not in _type_names():
            raise EOFError
        raise ColumnError(wrong, column, kind, file)
    return dict(fields)


def receive_rows(
    pipe: TimedPipe, source: TableSource, collector: Collector[Collected], row_limit: int, most_bytes: int
) -> Collected:
    """Read all batches into a collector.

    UnreadableError if there are more than ``row_limit`` rows, or if more than ``most_bytes`` bytes of memory are needed:
    for people and texts, and for the rows of the engine ``memory``.
    """
    in_memory, highest_person = row_bytes(source) if source.engine == "memory" else 0, -1
    largest = dict.fromkeys(source.texts, 0)
    while "people" not in (header := receive_header(pipe, source)):
        rows, file_rows, unnamed = int(header["rows"]), int(header["file_rows"]), int(header["unnamed"])
        if not 0 <= rows <= file_rows - unnamed <= file_rows <= _MAX_BATCH_ROWS:
            raise EOFError
        if collector.private_row_count + rows > row_limit:
            raise UnreadableError(describe_exceeded_limit(source))
        codes = _receive_codes(pipe, source, rows)
        texts = {name: _read_items(pipe, rows, TEXT_CODE) for name in source.texts}
        for name, column in texts.items():
            largest[name] = max(largest[name], int(column.max(initial=0)))
        numbers = None
        if source.person is not None:
            numbers = _read_items(pipe, rows, np.dtype("<u4")).astype(np.uint32, copy=False)
            highest_person = max(highest_person, int(numbers.max(initial=0)) if rows else -1)
        collector.add(EncodedBatch(codes, numbers, file_rows, unnamed, texts))
    people = int(header["people"])
    if not highest_person < people <= collector.file_row_count - collector.private_unnamed:
        raise EOFError
    used = collector.private_row_count * in_memory + people * PERSON_BYTES
    if not in_memory and used > most_bytes:
        raise UnreadableError(_TOO_MANY_PEOPLE)
    sizes, rows_in_all = header.get("texts", []), collector.file_row_count
    found = _receive_texts(pipe, source, sizes, largest, rows_in_all, most_bytes - used)
    if source.person is None:
        return collector.rows(None, found)
    names = _read_items(pipe, 2 * people, np.dtype("<u8")).astype(np.uint64, copy=False)
    return collector.rows(names.reshape(-1, 2), found)


def _receive_codes(pipe: TimedPipe, source: TableSource, rows: int) -> dict[str, CodeArray]:
    codes: dict[str, CodeArray] = {}
    for name, domain in source.attributes.items():
        codes[name] = _read_items(pipe, rows, code_type(domain.size))
        if rows and int(codes[name].max()) >= domain.size:
            raise EOFError
    return codes


def _receive_texts(
    pipe: TimedPipe, source: TableSource, sizes: Any, largest: Mapping[str, int], rows: int, most_bytes: int
) -> dict[str, tuple[bytes, ...]]:
    """Read the texts of all text attributes; ``largest`` has the largest received code of each attribute."""
    counts = [(int(count), int(content)) for count, content in sizes]
    if sum(count * TEXT_BYTES + content for count, content in counts) > most_bytes:
        raise UnreadableError(LARGER_THAN_MEMORY if source.engine == "memory" else _TOO_MANY_PEOPLE)
    found = {}
    for (name, declared), (count, content) in zip(source.texts.items(), counts, strict=True):
        if not largest[name] <= count <= min(MAX_TEXTS, rows):
            raise EOFError
        lengths = _read_items(pipe, count, np.dtype("<u2"))
        if int(lengths.sum(dtype=np.int64)) != content:
            raise EOFError
        found[name] = split_texts(declared, lengths, _read_items(pipe, content).tobytes())
    return found


_TOO_MANY_PEOPLE: Final = "people and texts larger than SOTTO_TABLE_BYTES"


def describe_exceeded_limit(source: TableSource) -> str:
    """Return the cause for refusing a table with too many rows; it names the setting of the limit."""
    return LARGER_THAN_MEMORY if source.engine == "memory" else "larger than SOTTO_ENGINE_DISK_BYTES"


_BYTE: Final = np.dtype(np.uint8)


def _read_items(pipe: TimedPipe, item_count: int, dtype: np.dtype[Any] = _BYTE) -> npt.NDArray[Any]:
    """Read ``item_count`` items; EOFError if the pipe ends, TimeoutError after the deadline."""
    found = np.empty(item_count, dtype=dtype)
    view, filled = found.view(np.uint8).data, 0
    while filled < len(view):
        received = pipe.readinto(view[filled:])
        if not received:
            raise EOFError
        filled += received
    return found


def answer_request(request: dict[str, Any], output: IO[bytes]) -> None:
    """Write the answer to a request: the table's encoded rows, its version stamp, its columns, or a refusal."""
    source = TableSource.model_validate(request["source"])
    try:
        if request["wanted"] == "stamp":
            output.write(encode_header({"stamp": stamp_of_source(source)[1:]}))
        elif request["wanted"] == "columns":
            output.write(encode_header({"columns": read_columns(source.paths[0], request)}))
        else:
            encoder = RowEncoder(source)
            for batch in _encode_batches(source, request, encoder):
                write_batch(output, batch)
            write_end(output, None if encoder.people is None else encoder.people.names(), encoder.texts())
    except UnreadableError as error:
        output.write(encode_header({"unreadable": error.cause, "file": error.file}))
    except Missing as error:
        output.write(encode_header({"unreadable": str(error)}))
    except ColumnError as error:
        output.write(encode_header({"refused": error.details, "file": error.file}))
    except MemoryError:
        output.write(encode_header({"unreadable": "more memory than SOTTO_TABLE_READING_BYTES"}))
    output.flush()


def read_columns(path: str, request: dict[str, Any]) -> list[ColumnType]:
    """Return the names and types of a table's columns, from its first file; no row is read."""
    files = _listed_files(request)[path]
    part = next(open_table_parts(path, files, request["reading_bytes"], request["seconds"]), None)
    types = {} if part is None else part.types
    return [
        ColumnType(name, kind.base_type().__name__, getattr(kind, "scale", None))
        for name, kind in list(types.items())[:MAX_COLUMNS]
    ]


def _listed_files(request: dict[str, Any]) -> dict[str, tuple[TableFile, ...] | None]:
    return msgspec.convert(request["parts"], dict[str, tuple[TableFile, ...] | None])


def _encode_batches(source: TableSource, request: dict[str, Any], encoder: RowEncoder) -> Iterator[EncodedBatch]:
    """Yield the table's batches; a file whose metadata gives too many rows is refused before it is read."""
    row_limit, rows = request["row_limit"], 0
    listed = _listed_files(request)
    for part in open_source_parts(source, listed, request["file_bytes"], request["seconds"]):
        if isinstance(part, FilePart) and rows + part.row_count_from_metadata() > row_limit:
            raise UnreadableError(describe_exceeded_limit(source))
        for batch in encoder.encode_part(part):
            rows += len(next(iter(batch.private_codes.values())))
            yield batch
