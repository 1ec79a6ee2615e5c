"""Encodes cells as codes, and hashes words of codes (SipHash).

Each cell is encoded by the declared domain alone, independently of other cells. Otherwise one person's row could change
the codes of another person's row, and so change a count by more than 1.

- An undeclared or missing category becomes ``other``; without ``other`` its row is left out.
- A number out of range, also an infinite number, is clamped, or its row is left out (``reject``).
- A decimal between two steps is first rounded to the nearer step; halfway between them, away from 0.
- A date or time gets the code of its calendar cell (``date_codes``); out of range, it is treated like a number.
- A row with a missing, invalid or (for integers) fractional number is always left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers
from schemas.domains import decimal_of
from stream.optional_packages import pl
from stream.tables.date_codes import date_codes
from stream.tables.engine_limits import code_bytes
from stream.tables.table_errors import ColumnError

CodeArray = npt.NDArray[np.unsignedinteger[Any]]
Mask = npt.NDArray[np.bool_]

_LARGEST_EXACT: Final = 2.0**53
_MAX_COMPARED_EDGES: Final = 32
"""Up to this number of edges, comparing cells with each edge is faster than a binary search."""
_INTEGER_TYPES: Final = frozenset({"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32"})


def code_type(size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest little-endian unsigned type for codes 0 … size − 1."""
    return np.dtype(f"<u{code_bytes(size)}")


class Encoder:
    """Encodes the cells of one attribute, each independently of the other cells."""

    def __init__(self, name: str, domain: Domain) -> None:
        self._name = name
        self._domain = domain
        self._type = code_type(domain.size)
        self._enum = pl.Enum(domain.values if isinstance(domain, Categories) else ())

    def __call__(self, column: pl.Series) -> tuple[CodeArray, Mask]:
        """Return each row's code, and a mask of the rows with a code; codes outside the mask mean nothing.

        TableDataError if the column's type, which the file declares for all rows, does not fit the domain.
        """
        found: npt.NDArray[Any]
        match self._domain:
            case Categories():
                matched = as_text(self._name, column).cast(self._enum, strict=False).to_physical()
                if self._domain.other is not None:
                    matched = matched.fill_null(self._domain.values.index(self._domain.other))
                found, known = matched.fill_null(0).to_numpy(), matched.is_not_null().to_numpy()
            case Integers():
                if (
                    str(column.dtype) in _INTEGER_TYPES
                    and -_LARGEST_EXACT < self._domain.minimum <= self._domain.maximum < _LARGEST_EXACT
                ):
                    found, known = _codes_of_integer_column(self._domain, column)
                else:
                    found, known = integer_codes(self._domain, as_numbers(self._name, column))
            case Dates():
                found, known = date_codes(self._name, self._domain, column)
            case Decimals():
                numbers = as_numbers(self._name, column)
                found, known = decimal_codes(
                    self._domain, numbers, lambda places: exact_text(column.gather(places)).to_list()
                )
            case Bins():
                found, known = bin_codes(self._domain, as_numbers(self._name, column))
        return found.astype(self._type), known


def encode(name: str, domain: Domain, column: pl.Series) -> tuple[CodeArray, Mask]:
    """Encode one column; see ``Encoder``."""
    return Encoder(name, domain)(column)


def _codes_of_integer_column(domain: Integers, column: pl.Series) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return the same result as ``integer_codes``, in less time, for a column with an integer type."""
    known = column.is_not_null().to_numpy()
    cells = column.cast(pl.Int64).fill_null(domain.minimum).to_numpy()
    if domain.outside == "reject":
        known = known & (cells >= domain.minimum) & (cells <= domain.maximum)
    return np.clip(cells, domain.minimum, domain.maximum) - domain.minimum, known


def integer_codes(domain: Integers, cells: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return each number's code, and a mask of the numbers with a code; NaN has no code."""
    known = cells == np.floor(cells)
    if domain.outside == "reject":
        known &= (cells >= domain.minimum) & (cells <= domain.maximum)
    inside = np.clip(np.where(known, cells, domain.minimum), domain.minimum, domain.maximum)
    return (inside - domain.minimum).astype(np.int64), known


_TIE_MARGIN: Final = 2.0**-6
"""Numbers within this distance of a tie, in steps, are compared exactly; a double's error is below 2⁻¹⁰ steps."""
_HALF: Final = Decimal("0.5")

ExactTexts = Callable[[npt.NDArray[np.intp]], Sequence[str]]
"""Returns the exact decimals, as texts, of the cells at some indexes."""


def decimal_codes(
    domain: Decimals, cells: npt.NDArray[np.float64], exact_texts: ExactTexts | None = None
) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return each number's code, and a mask of the numbers with a code; NaN has no code.

    A number is rounded by its double or, near a tie, by the exact decimal that ``exact_texts`` returns. A tie is a number
    halfway between two steps.
    """
    whole = domain.in_steps
    known = ~np.isnan(cells)
    steps = _divide_by_step(domain, np.where(known, cells, domain.minimum))
    size = np.abs(steps)
    below = np.floor(size)
    up = size - below >= 0.5
    if exact_texts is not None and len(near := np.flatnonzero(near_tie_mask(domain, cells))):
        half = decimal_of(domain.unit) * _HALF
        up[near] = [
            _reaches_tie(text, number, half * (2 * int(low) + 1))
            for text, number, low in zip(
                exact_texts(near), cells[near].tolist(), below[near].tolist(), strict=True
            )
        ]
    codes = np.copysign(below + up, steps).astype(np.int64)
    if domain.outside == "reject":
        known &= (codes >= whole.minimum) & (codes <= whole.maximum)
    return np.clip(codes, whole.minimum, whole.maximum) - whole.minimum, known


def near_tie_mask(domain: Decimals, cells: npt.NDArray[np.float64]) -> Mask:
    """Return a mask of the numbers whose double may be on the wrong side of a tie."""
    parts = np.abs(_divide_by_step(domain, cells))
    near: Mask = np.abs(parts - np.floor(parts) - 0.5) < _TIE_MARGIN
    return near


def _divide_by_step(domain: Decimals, cells: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide numbers by the step, and clip the quotients to one step beyond either end."""
    whole, unit = domain.in_steps, domain.unit
    with np.errstate(over="ignore"):
        steps = cells * unit.denominator / unit.numerator
    return np.clip(steps, whole.minimum - 1.0, whole.maximum + 1.0)


def _reaches_tie(text: str, number: float, tie: Decimal) -> bool:
    """Return whether a number, by its exact text, is at least as far from 0 as a tie."""
    try:
        exact = Decimal(text)
    except ArithmeticError:
        exact = Decimal(repr(number))
    return exact.copy_abs() >= tie


def exact_text(column: pl.Series) -> pl.Series:
    """Convert numbers or their texts to exact decimals; a double becomes its shortest decimal."""
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    return column.cast(pl.String).str.strip_chars()


def bin_codes(domain: Bins, cells: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], Mask]:
    """Return each number's bin, and a mask of the numbers with a bin; NaN has no bin."""
    edges = np.array(domain.edges, dtype=np.float64)
    known = ~np.isnan(cells)
    if domain.outside == "reject":
        known &= (cells >= edges[0]) & (cells <= edges[-1])
    inner = edges[1:-1]
    if len(inner) > _MAX_COMPARED_EDGES:
        return np.searchsorted(inner, cells, side="right").clip(0, len(inner)), known
    found = np.zeros(len(cells), dtype=np.uint8)
    for edge in inner:
        found += cells >= edge
    return found, known


def as_text(name: str, column: pl.Series) -> pl.Series:
    """Convert a column's cells to text, as they are compared with categories; ColumnError for other types."""
    kind = column.dtype
    if kind.is_float():
        # Some programs write a column of integers as floats if a cell is missing: 1.0 is the category '1'.
        whole = (column == column.floor()) & (column.abs() <= _LARGEST_EXACT)
        return (
            column.cast(pl.Int64, strict=False)
            .cast(pl.String)
            .zip_with(whole.fill_null(value=False), column.cast(pl.String))
        )
    if kind in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null) or kind.is_integer():
        return column.cast(pl.String)
    raise ColumnError("no text", name, _type_name(kind))


def as_numbers(name: str, column: pl.Series) -> npt.NDArray[np.float64]:
    """Convert a column's cells to numbers, NaN for a missing cell or another text; ColumnError for other types."""
    kind = column.dtype
    if kind in (pl.String, pl.Categorical, pl.Enum):
        column = column.cast(pl.String).str.strip_chars()
    elif not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
        raise ColumnError("no numbers", name, _type_name(kind))
    if kind.is_float() and kind != pl.Float64:
        # 32-bit floats are converted by their shortest decimals, as in CSV, so that 0.7 is not below an edge of 0.7.
        column = column.cast(pl.String)
    return column.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()


def _type_name(kind: pl.DataType) -> str:
    """Return a type's name without its parameters, which may contain private text of the file."""
    return str(kind.base_type())


Words = npt.NDArray[np.uint64]

_SIPHASH_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_ROWS_PER_BLOCK: Final = 1 << 14
"""Number of messages that are hashed at a time, so that they fit into the cache of a processor core."""
_SIPHASH_END: Final = 0xFF


def siphash(keys: Words, messages: Words) -> Words:
    """Return the SipHash of each message, a row of 64-bit words.

    ``keys`` has a row for each message, or one row for all messages.
    """
    found = np.empty(len(messages), dtype=np.uint64)
    for start in range(0, len(messages), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        found[block] = _hash_block(keys if len(keys) == 1 else keys[block], messages[block])
    return found


def _hash_block(keys: Words, messages: Words) -> Words:
    state = [np.full(len(messages), word, dtype=np.uint64) for word in _SIPHASH_START]
    for place in range(4):
        state[place] ^= keys[:, place % 2]
    length = np.full(len(messages), (8 * messages.shape[1] & 0xFF) << 56, dtype=np.uint64)
    for word in (*np.ascontiguousarray(messages.T), length):
        state[3] ^= word
        _apply_rounds(state, 2)
        state[0] ^= word
    state[2] ^= np.uint64(_SIPHASH_END)
    _apply_rounds(state, 4)
    found: Words = state[0] ^ state[1] ^ state[2] ^ state[3]
    return found


def _apply_rounds(state: list[Words], count: int) -> None:
    """Apply ``count`` rounds of SipHash to ``state`` in place; sums are modulo 2⁶⁴."""
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        _rotate(v1, 13)
        v1 ^= v0
        _rotate(v0, 32)
        v2 += v3
        _rotate(v3, 16)
        v3 ^= v2
        v0 += v3
        _rotate(v3, 21)
        v3 ^= v0
        v2 += v1
        _rotate(v1, 17)
        v1 ^= v2
        _rotate(v2, 32)


def _rotate(word: Words, by: int) -> None:
    low = word >> np.uint64(64 - by)
    word <<= np.uint64(by)
    word |= low
