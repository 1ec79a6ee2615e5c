"""Text attributes, whose values are private; only ``unknown_groups`` releases them.

Texts are compared byte by byte. Equal texts have the same code. A row whose field is missing, empty or too long has no
text (code 0). The codes of texts have no order, and nothing public depends on them: rows are hashed by the digests of
their texts, not by codes. A group is a text or, with declared attributes, a text and a cell of these attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import MAX_TEXTS, Text
from stream.optional_packages import pl
from stream.tables.encoding import as_text
from stream.tables.engine_limits import TEXT_CODE_BYTES
from stream.tables.table_errors import UnreadableError

Numbers = npt.NDArray[np.int64]

TextCodes = npt.NDArray[np.uint32]
Digests = npt.NDArray[np.void]

TEXT_CODE: Final = np.dtype(f"<u{TEXT_CODE_BYTES}")
TEXT_BYTES: Final = 128
"""Maximum memory in bytes for each distinct text, beside the text itself."""
_TOO_MANY: Final = f"more than {MAX_TEXTS} different texts in one attribute; declare a column with fewer"

_DIGEST_BYTES: Final = 16
_DIGEST_CONTEXT: Final = "sotto 2026 text v1"
_CELL_BYTES: Final = 4


@dataclass(frozen=True)
class TextDigests:
    """The rows of a text column as digests, which are looked up only for the requested rows."""

    private_codes: TextCodes
    private_digests: Digests

    dtype: np.dtype[Any] = np.dtype((np.void, _DIGEST_BYTES))  # noqa: RUF009  (immutable)

    def __getitem__(self, rows: Any) -> Digests:
        found: Digests = self.private_digests[self.private_codes[rows]]
        return found


@dataclass(frozen=True)
class TextColumn:
    """The texts of one attribute: a code for each row, which is 0 without a text, and the text of each other code."""

    declared: Text
    private_codes: TextCodes
    private_texts: tuple[bytes, ...]
    """The text of code 1, of code 2, and so on."""

    @cached_property
    def digests(self) -> TextDigests:
        """The rows' digests; a row without a text has a digest of zeros."""
        parts = [
            blake3(text, derive_key_context=_DIGEST_CONTEXT).digest(_DIGEST_BYTES) for text in self.private_texts
        ]
        joined = np.frombuffer(bytes(_DIGEST_BYTES) + b"".join(parts), dtype=TextDigests.dtype)
        return TextDigests(self.private_codes, joined)

    def gather(self, rows: Any) -> TextColumn:
        """Return the column of some rows, with the same codes."""
        return replace(self, private_codes=self.private_codes[rows])


class TextEncoder:
    """Encodes the cells of one text attribute; all batches share the codes."""

    def __init__(self, name: str, declared: Text) -> None:
        self._name = name
        self._declared = declared
        self._texts = pl.Categories.random()
        # Polars keeps the mapping as long as a series of its type exists.
        self._kept_series = pl.Series([], dtype=pl.Categorical(self._texts))

    def __call__(self, column: pl.Series) -> TextCodes:
        """Return each row's code; ColumnError if the column's type cannot be read as text."""
        cells = as_text(self._name, column)
        kept = cells.zip_with(is_text(cells, self._declared), pl.Series([None], dtype=pl.String))
        numbers = kept.cast(self._kept_series.dtype).to_physical().cast(pl.UInt32) + 1
        codes: TextCodes = numbers.fill_null(0).to_numpy().astype(TEXT_CODE)
        if len(codes) and int(codes.max()) > MAX_TEXTS:
            raise UnreadableError(_TOO_MANY)
        return codes

    def texts(self) -> tuple[bytes, ...]:
        """Return the text of code 1, of code 2, and so on."""
        return tuple(text.encode() for text in self._texts.to_series())


def is_text(cells: pl.Series, declared: Text) -> pl.Series:
    """Return a mask of the cells that have a text: they are not missing, empty or too long."""
    sizes = cells.str.len_bytes()
    return ((sizes > 0) & (sizes <= declared.max_length)).fill_null(value=False)


def hashed_columns(codes: Mapping[str, Any], texts: Mapping[str, TextColumn]) -> Mapping[str, Any]:
    """Add the digests of texts to the codes of attributes, for hashes of rows."""
    return {**codes, **{name: column.digests for name, column in texts.items()}} if texts else codes


def join_texts(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint16], bytes]:
    """Return the lengths of texts and their joined bytes, as they are sent."""
    return np.fromiter(map(len, texts), dtype="<u2", count=len(texts)), b"".join(texts)


def split_texts(declared: Text, lengths: npt.NDArray[np.uint16], content: bytes) -> tuple[bytes, ...]:
    """Return received texts; ValueError if a text is repeated, too long, empty or not UTF-8."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    texts = tuple(content[start:end] for start, end in zip([0, *ends], ends, strict=False))
    if len(set(texts)) < len(texts) or any(not 0 < len(text) <= declared.max_length for text in texts):
        raise ValueError("texts: repeated, empty or too long")
    content.decode()
    for text in texts:
        text.decode()
    return texts


@dataclass(frozen=True, slots=True)
class TextGroups:
    """Groups with their texts, their counts and, if they have declared attributes, the numbers of their cells."""

    private_texts: Sequence[bytes]
    private_cells: Numbers | None
    private_counts: Numbers

    def private_names(self) -> Sequence[bytes]:
        """Return the name of each group: its text, followed by its cell if there are declared attributes."""
        if self.private_cells is None:
            return self.private_texts
        cells = self.private_cells.astype(">u4").tobytes()
        return [
            text + cells[_CELL_BYTES * place : _CELL_BYTES * (place + 1)]
            for place, text in enumerate(self.private_texts)
        ]


def split_name(name: bytes) -> tuple[bytes, int]:
    """Split the name of a group with declared attributes into its text and its cell."""
    return name[:-_CELL_BYTES], int.from_bytes(name[-_CELL_BYTES:], "big")
