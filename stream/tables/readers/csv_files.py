"""Reads CSV files in blocks of whole rows, and refuses files with ambiguous quotes.

Quotes decide which newlines end a row, so the quotes of all columns are checked before a block is parsed. A quoted cell
begins and ends with a quote, and quotes inside it are doubled. Other cells have no quotes.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from gzip import BadGzipFile, GzipFile
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from stream.optional_packages import pl
from stream.tables.table_errors import UnreadableError

EXTRA_CELL_COLUMN: Final = "\0surplus"
"""The column that has each line's first extra cell; no header has this name."""

BLOCK_BYTES: Final = 8 << 20
_HEADER_BYTES: Final = 1 << 16

_NOT_CSV: Final = {
    b"PAR1": "it is a Parquet file; give it a name that ends in .parquet",
    b"PK\x03\x04": "it is a workbook or another zip file; write it as CSV",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd; compress it with gzip",
    b"\xff\xfe": "it is UTF-16; write it as UTF-8",
    b"\xfe\xff": "it is UTF-16; write it as UTF-8",
}
"""First bytes of files that are not CSV, each with the problem and its remedy."""
SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Separators that programs write instead of commas."""

_GZIP: Final = b"\x1f\x8b"
_UTF8_MARK: Final = b"\xef\xbb\xbf"

_QUOTE, _LF, _CR = b'"\n\r'
_BEFORE_OPENING: Final = np.isin(np.arange(256), list(b',\n"'))
_AFTER_CLOSING: Final = np.isin(np.arange(256), list(b',\n\r"'))

Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class CsvFile:
    """A CSV file, possibly gzipped; cells are text, and missing cells are empty."""

    open: Callable[[], io.RawIOBase | io.BytesIO]

    @cached_property
    def names(self) -> Sequence[str]:
        """The column names in the first nonblank line; UnreadableError if there is no such line."""
        with _CsvText(self.open) as text:
            return text.names

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The columns in order, all of type text; each name has the first column with it."""
        return dict.fromkeys(self.names, pl.String())

    @property
    def duplicate_names(self) -> Sequence[str]:
        """Names that several columns have."""
        return [name for name in self.types if self.names.count(name) > 1]

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches; UnreadableError if a quote is ambiguous."""
        with _CsvText(self.open) as text:
            places = [str(place) for place in range(len(text.names) + 1)]
            header = ",".join(places).encode() + b"\n"
            chosen = [
                pl.col(places[-1 if name == EXTRA_CELL_COLUMN else text.names.index(name)])
                .fill_null("")
                .alias(name)
                for name in names
            ]
            for block in text.blocks():
                yield from (
                    pl.scan_csv(
                        io.BytesIO(header + block),
                        schema=dict.fromkeys(places, pl.String()),
                        encoding="utf8-lossy",
                        truncate_ragged_lines=True,
                        empty_string_is_null=False,
                    )
                    .select(chosen)
                    .collect_batches(chunk_size=rows, lazy=True)
                )


class _CsvText:
    def __init__(self, open_file: Callable[[], io.RawIOBase | io.BytesIO]) -> None:
        self._stream = io.BufferedReader(open_file(), _HEADER_BYTES)
        try:
            self._chunks = _read_chunks(self._stream)
            self._line = 1
            self.names = self._read_names()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def blocks(self) -> Iterator[bytes]:
        """Yield the text after the line of column names, in blocks of complete rows."""
        unparsed, size, wanted = [self._text_after_header], len(self._text_after_header), 0
        for chunk in self._chunks:
            unparsed.append(chunk)
            size += len(chunk)
            if size < wanted:
                continue
            text = b"".join(unparsed)
            quotes = _find_all(text, _QUOTE)
            self._check_quotes(text, quotes)
            end = _last_row_end(text, quotes)
            # If no row is complete, the next block is twice as long.
            unparsed, size, wanted = [text[end:]], len(text) - end, 0 if end else 2 * len(text)
            if end:
                yield text[:end]
                self._line += text.count(b"\n", 0, end)
        text = b"".join(unparsed)
        if text:
            quotes = _find_all(text, _QUOTE)
            self._check_quotes(text, quotes)
            if len(quotes) % 2:
                raise self._build_error(text, int(quotes[-1]))
            yield text

    def _read_names(self) -> list[str]:
        text = next(self._chunks, b"")
        for signature, problem in _NOT_CSV.items():
            if text.startswith(signature):
                raise UnreadableError(problem)
        text = text.removeprefix(_UTF8_MARK)
        while True:
            stripped = text.lstrip(b"\r\n")
            self._line += text.count(b"\n", 0, len(text) - len(stripped))
            text = stripped
            if (end := _first_row_end(text)) is not None:
                break
            chunk = next(self._chunks, b"")
            if not chunk:
                end = len(text)
                break
            text += chunk
        header, self._text_after_header = text[:end], text[end:]
        if not header:
            raise UnreadableError("no line of column names")
        return self._parse_names(header)

    def _parse_names(self, header: bytes) -> list[str]:
        if b"\0" in header:
            raise UnreadableError("its first line has NUL bytes; write the file as UTF-8")
        line = header.rstrip(b"\r\n")
        self._header = line.decode("utf-8", "replace")
        self._check_quotes(header, _find_all(header, _QUOTE))
        if any(b"\r" in part for part in line.split(b'"')[::2]):
            raise UnreadableError("its lines end in CR alone; end them with LF or CR LF")
        if line.count(b'"') % 2:
            raise self._build_error(header, header.rindex(b'"'))
        self._line += header.count(b"\n")
        try:
            [names] = csv.reader(io.StringIO(self._header, newline=""), strict=True)
        except (csv.Error, ValueError):
            raise UnreadableError("its line of column names is malformed") from None
        return names

    def _check_quotes(self, text: bytes, quotes: Places) -> None:
        """Raise UnreadableError unless each quote opens a cell, closes a cell, or is doubled within a cell."""
        if not len(quotes):
            return
        signs = np.frombuffer(text, dtype=np.uint8)
        opening, closing = quotes[::2], quotes[1::2]
        opens = (opening == 0) | _BEFORE_OPENING[signs[opening - 1]]
        # A quote at the end of the text is checked with the next block.
        behind = np.minimum(closing + 1, len(signs) - 1)
        closes = (closing == behind) | _AFTER_CLOSING[signs[behind]]
        after_behind = np.minimum(behind + 1, len(signs) - 1)
        closes &= (signs[behind] != _CR) | (after_behind == behind) | (signs[after_behind] == _LF)
        stray = [*opening[~opens][:1].tolist(), *closing[~closes][:1].tolist()]
        if stray:
            raise self._build_error(text, min(stray))

    def _build_error(self, text: bytes, place: int) -> UnreadableError:
        for sign, separator_name in SEPARATORS.items():
            if sign in self._header and "," not in self._header:
                return UnreadableError(
                    f"its columns seem to be separated by {separator_name}; write it with commas"
                )
        line = self._line + text.count(b"\n", 0, place)
        return UnreadableError(
            "a stray quote; put cells with quotes, commas or newlines in quotes, and double their own quotes",
            where=f"line {line:,}",
        )


def _read_chunks(stream: io.BufferedReader[Any]) -> Iterator[bytes]:
    """Yield the text, decompressed if it is gzipped: first ``_HEADER_BYTES`` bytes, then blocks."""
    file = GzipFile(fileobj=stream) if stream.peek(len(_GZIP)).startswith(_GZIP) else stream
    try:
        yield file.read(_HEADER_BYTES)
        while chunk := file.read(BLOCK_BYTES):
            yield chunk
    except EOFError:
        raise UnreadableError("its gzip format is damaged: it ends early") from None
    except (BadGzipFile, zlib.error):
        raise UnreadableError("its gzip format is damaged") from None


def _find_all(text: bytes, sign: int) -> Places:
    if sign not in text:
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == sign)


def _first_row_end(text: bytes) -> int | None:
    """Return the position after the first row's newline; None if the row is incomplete."""
    quotes = at = 0
    while found := text.find(b"\n", at) + 1:
        quotes += text.count(b'"', at, found)
        if quotes % 2 == 0:
            return found
        at = found
    return None


def _last_row_end(text: bytes, quotes: Places) -> int:
    """Return the position after the last complete row's newline; 0 if no row is complete."""
    if not len(quotes):
        return text.rfind(b"\n") + 1
    newlines = _find_all(text, _LF)
    ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return int(ends[-1]) + 1 if len(ends) else 0
