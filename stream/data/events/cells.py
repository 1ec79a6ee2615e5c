"""From the values of one field in many events to codes, each value by itself, by the rules of tables' cells.

A batch's values come together by chance. So nothing may be read from what they have in common, as a table's column is read from
its type: whatever is faster for values that are alike gives what each would give alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Bins, Categories, Domain, Integers
from stream.data.encoding import Mask, bin_codes, integer_codes

Codes = npt.NDArray[np.int64]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf")
_LARGEST_EXACT: Final = 2.0**53
_NUMERIC: Final = frozenset({int, float, bool})
_TEXT: Final = frozenset({str})


class Cells:
    """Codes of one attribute."""

    def __init__(self, domain: Domain) -> None:
        self._domain: Integers | Bins | None = None
        self._codes: dict[Any, int] = {}
        self._other = -1
        if isinstance(domain, Categories):
            self._codes = {value: code for code, value in enumerate(domain.values)}
            self._other = -1 if domain.other is None else self._codes[domain.other]
        else:
            self._domain = domain

    def codes(self, values: Sequence[Any]) -> tuple[Codes, Mask]:
        """The code of each value, and which have one."""
        kinds = set(map(type, values))
        if self._domain is None:
            texts = values if kinds <= _TEXT else [text_of(value) for value in values]
            find, other = self._codes.get, self._other
            codes = np.array([find(text, other) for text in texts], dtype=np.int64)
            return codes, codes >= 0
        numbers = _numbers(values, kinds)
        if isinstance(self._domain, Integers):
            return integer_codes(self._domain, numbers)
        return bin_codes(self._domain, numbers)


def _numbers(values: Sequence[Any], kinds: set[type]) -> npt.NDArray[np.float64]:
    if kinds <= _NUMERIC:
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            pass
    return np.array([number_of(value) for value in values], dtype=np.float64)


def text_of(value: Any) -> str | None:
    """A value as categories are read from it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if abs(value) <= _LARGEST_EXACT and value == math.floor(value) else repr(value)
        case _:
            return None


def number_of(value: Any) -> float:
    """A value as numbers are read from it: the double nearest to it, infinite beyond all of them; NaN for what is none."""
    match value:
        case float():
            return value
        case int():
            try:
                return float(value)
            except OverflowError:
                return math.inf if value > 0 else -math.inf
        case str() if _NUMBER.fullmatch(stripped := value.strip()):
            return float(stripped)
        case _:
            return math.nan
