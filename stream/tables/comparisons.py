"""Converts values to codes, and comparisons to exact sets of codes.

``ShapeCache`` parses a predicate quickly if it differs from an earlier predicate only in its numbers.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal, TypeGuard

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers
from schemas.calendars import LiteralPeriod, parse_period
from stream.formatting import find_name_in_other_case
from stream.tables.expressions import FALSE, TRUE, AllOf, Codes, Predicate, conjunction, make_leaf, negation
from stream.tables.table_errors import MONDAY_IS_1, PredicateError, quote_name, quote_names, to_nfc

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
_NEGATED: Final = frozenset({"<>", ">=", ">"})
"""Operators that are the negations of =, < and <=."""
Constant = str | Decimal
"""A literal of a predicate: a string, or a number with exactly the written value."""

MAX_DECIMAL_EXPONENT = 30


def parse_number(text: str) -> Decimal:
    """Parse a number literal exactly; PredicateError unless its exponent is from −30 to 30."""
    try:
        value = Decimal(text)
    except ArithmeticError:
        raise PredicateError("a number cannot be read; write it in digits", text) from None
    if not value:
        return Decimal(0)
    if not value.is_finite() or abs(value.adjusted()) > MAX_DECIMAL_EXPONENT:
        raise PredicateError(f"a number is beyond 1e±{MAX_DECIMAL_EXPONENT}; write one within", text)
    return value


@dataclass(frozen=True)
class Attribute:
    """A declared attribute, which converts comparisons with it to predicates, and its values to codes."""

    name: str
    domain: Domain

    def compare(self, operator: Operator, literal: Constant) -> Predicate:
        """Return the predicate ``attribute operator literal``."""
        match self.domain:
            case Categories() as categories:
                found = self._compare_category(categories, operator, literal)
            case Integers() as integers:
                found = self._compare_integer(integers, operator, self._require_number(literal))
            case Dates(part=Integers() as part):
                found = self._compare_integer(part, operator, self._require_number(literal))
            case Dates() as dates:
                found = self._compare_date(dates, operator, literal)
            case Decimals(in_steps=in_steps, unit=unit):
                found = self._compare_integer(in_steps, operator, Fraction(self._require_number(literal)) / unit)
            case Bins() as bins:
                found = self._compare_bin(bins, operator, self._require_number(literal))
        return negation(found) if operator in _NEGATED else found

    def between(self, low: Constant, high: Constant) -> Predicate:
        """Return the predicate of the rows from ``low`` to ``high``, both included."""
        return conjunction((self.compare(">=", low), self.compare("<=", high)))

    def code(self, value: str | float) -> int:
        """Return the code of a value; PredicateError if it is not in the domain.

        An invalid value in a row is clamped, becomes ``other``, or its row is left out. An invalid value in a question
        is refused, so that no answer is about another cell than the requested one.
        """
        match self.domain:
            case Categories():
                if not isinstance(value, str):
                    raise PredicateError(f"{quote_name(self.name)} holds categories; give one as a string")
                return self._category_code(value)
            case (
                Integers(minimum=minimum, maximum=maximum) | Dates(part=Integers(minimum=minimum, maximum=maximum))
            ):
                if not _is_number(value) or not minimum <= value <= maximum or value != int(value):
                    raise PredicateError(
                        f"{quote_name(self.name)} holds whole numbers from {minimum} to {maximum}; give one of them"
                    )
                return int(value) - minimum
            case Dates() as dates:
                return self._date_code(dates, value)
            case Decimals() as decimals:
                return self._decimal_code(decimals, value)
            case Bins(edges=edges, size=size):
                if not _is_number(value) or not edges[0] <= value <= edges[-1]:
                    raise PredicateError(
                        f"{quote_name(self.name)} holds numbers from {edges[0]:.15g} to {edges[-1]:.15g}; give one of them"
                    )
                return min(bisect_right(edges, float(value)), size) - 1

    def refusal_of_truth(self, *, truth: bool) -> str:
        """Return the message that refuses a comparison with TRUE or FALSE."""
        word = str(truth)
        if isinstance(self.domain, Dates) and self.domain.part is None:
            return f"{quote_name(self.name)} holds dates; write one in single quotes in place of {word.upper()}"
        if not isinstance(self.domain, Categories):
            return f"{quote_name(self.name)} is numeric; write a number in place of {word.upper()}"
        value = find_name_in_other_case(word, self.domain.values)
        instead = (
            f"declared are {quote_names(self.domain.values)}" if value is None else f"write {quote_name(value)}"
        )
        return f"{quote_name(self.name)} holds categories, not {word.upper()}; put a category in single quotes; {instead}"

    @cached_property
    def _code_of(self) -> dict[str, int]:
        values = self.domain.values if isinstance(self.domain, Categories) else ()
        return {value: code for code, value in enumerate(values)}

    def _require_number(self, literal: Constant) -> Decimal:
        if isinstance(literal, str):
            is_weekday = isinstance(self.domain, Dates) and self.domain.granularity == "weekday"
            days = f" ({MONDAY_IS_1})" if is_weekday else ""
            raise PredicateError(
                f"{quote_name(self.name)} is numeric; write numbers without quotes{days}", literal
            )
        return literal

    def _compare_category(self, domain: Categories, operator: Operator, literal: Constant) -> Predicate:
        """Return the predicate of =, < or <=; for <>, >= or >, the predicate of the opposite, which ``compare`` negates."""
        if operator not in {"=", "<>"} and not domain.ordered:
            raise PredicateError(
                f"categories of {quote_name(self.name)} have no order; compare with =, <> or IN, or declare them as ordered"
            )
        if not isinstance(literal, str):
            raise PredicateError(
                f"{quote_name(self.name)} holds categories; put them in single quotes", str(literal)
            )
        code = self._category_code(literal)
        first = code if operator in {"=", "<>"} else 0
        return make_leaf(self.name, domain.size, (first, code if operator in {"<", ">="} else code + 1))

    def _category_code(self, category: str) -> int:
        if (code := self._code_of.get(category)) is None:
            same = [value for value in self._code_of if to_nfc(value) == to_nfc(category)]
            declared = (
                f"it differs from the declared {quote_name(same[0])} in Unicode normalization; write it in the same form"
                if same
                else f"declared are {quote_names(self._code_of)}"
            )
            raise PredicateError(
                f"this text is not a declared value of {quote_name(self.name)}; {declared}", category
            )
        return code

    def _compare_date(self, domain: Dates, operator: Operator, literal: Constant) -> Predicate:
        """Return the predicate of =, < or <=; for <>, >= or >, the predicate of the opposite, which ``compare`` negates."""
        text = str(literal)
        if not isinstance(literal, str):
            raise PredicateError(f"{quote_name(self.name)} holds dates; put them in single quotes", text)
        period = self._parse_period(domain, text)
        if operator in {"<", ">="}:
            return make_leaf(self.name, domain.size, (0, self._cell_beginning_at(domain, period.start, text)))
        if period.end is None:
            raise PredicateError(
                f"a literal of {quote_name(self.name)} with a time of day is one instant; compare it with < or >=",
                text,
            )
        end = self._cell_beginning_at(domain, period.end, text)
        first = 0 if operator in {"<=", ">"} else self._cell_beginning_at(domain, period.start, text)
        return make_leaf(self.name, domain.size, (first, end)) if first < end else FALSE

    def _parse_period(self, domain: Dates, text: str) -> LiteralPeriod:
        try:
            return parse_period(text, domain.timezone)
        except (ValueError, OverflowError) as error:
            why = f": {error}" if "clock" in str(error) else ""
            kind = "dates" if domain.kind == "date" else "times"
            raise PredicateError(
                f"a literal of {quote_name(self.name)}, which holds {kind}, cannot be read{why}; write one as "
                + ("2024, 2024-Q1, 2024-03 or 2024-03-31" if kind == "dates" else "2024-03-31 or 2024-03-31T12Z"),
                text,
            ) from None

    def _cell_beginning_at(self, domain: Dates, at: int, text: str) -> int:
        """Return the code of the calendar cell that begins at a day or instant.

        At or after the end of the domain, the number of cells is returned.
        """
        calendar = domain.calendar
        if at <= calendar.start(0):
            return 0
        if at >= calendar.end():
            return domain.size
        place = calendar.cell_at(at)
        if calendar.start(place) != at:
            near = " or ".join(
                quote_name(calendar.label(one)) for one in range(place, min(place + 2, domain.size))
            )
            raise PredicateError(
                f"a date is not the edge of a {domain.granularity} of {quote_name(self.name)}; use {near}", text
            )
        return place

    def _date_code(self, domain: Dates, value: str | float) -> int:
        if isinstance(value, str):
            period = self._parse_period(domain, value)
            calendar = domain.calendar
            if period.end is not None and calendar.start(0) <= period.start < period.end <= calendar.end():
                first, end = (self._cell_beginning_at(domain, at, value) for at in (period.start, period.end))
                if end == first + 1:
                    return first
        raise PredicateError(
            f"{quote_name(self.name)} holds a {domain.granularity} from {domain.calendar.label(0)} to "
            f"{domain.calendar.label(domain.size - 1)}; give one of them"
        )

    def _decimal_code(self, domain: Decimals, value: str | float) -> int:
        whole = domain.in_steps
        if _is_number(value) and math.isfinite(value):
            steps = Fraction(Decimal(repr(value))) / domain.unit
            if steps.denominator == 1 and whole.minimum <= steps <= whole.maximum:
                return int(steps) - whole.minimum
        raise PredicateError(
            f"{quote_name(self.name)} holds numbers from {domain.minimum:.15g} to {domain.maximum:.15g} in steps of "
            f"{domain.step:.15g}; give one of them"
        )

    def _compare_integer(self, domain: Integers, operator: Operator, literal: Decimal | Fraction) -> Predicate:
        """Return the predicate of =, < or <=; for <>, >= or >, the predicate of the opposite, which ``compare`` negates."""
        floor, ceiling = math.floor(literal) - domain.minimum, math.ceil(literal) - domain.minimum
        match operator:
            case "<" | ">=":
                return make_leaf(self.name, domain.size, (0, ceiling))
            case "<=" | ">":
                return make_leaf(self.name, domain.size, (0, floor + 1))
            case "=" | "<>":
                return make_leaf(self.name, domain.size, (floor, floor + 1)) if floor == ceiling else FALSE

    def _compare_bin(self, domain: Bins, operator: Operator, literal: Decimal) -> Predicate:
        """Return the predicate of < or <=; for >= or >, the predicate of the opposite, which ``compare`` negates."""
        edge = bisect_left(domain.edges, float(literal))
        if edge == len(domain.edges) or domain.edges[edge] != float(literal):
            nearest = " or ".join(f"{value:.15g}" for value in domain.edges[max(edge - 1, 0) : edge + 1])
            raise PredicateError(
                f"a number is not a bin edge of {quote_name(self.name)}; use {nearest}", str(literal)
            )
        # The last bin includes its upper edge, so only <= and > can be used with that edge.
        is_last_edge = edge == domain.size
        if operator in {"<=", ">"} and is_last_edge:
            return TRUE
        if operator in {"<", ">="} and not is_last_edge:
            return make_leaf(self.name, domain.size, (0, edge))
        remedy = "use <= or > with the last edge" if is_last_edge else "use < or >= with an edge"
        raise PredicateError(
            f"bins of {quote_name(self.name)} cannot be compared with {operator} at this edge; {remedy}",
            str(literal),
        )


def _is_number(value: str | float) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


MAX_SHAPES: Final = 1 << 12
MAX_SHAPED_LENGTH: Final = 512
"""Length of the longest text whose shape is cached; shapes of longer texts rarely repeat."""

Ranges = tuple[tuple[str, int, int, int], ...]
"""Attributes in sorted order: name, size, and a half-open range of some but not all codes."""

_NumberOffsets = tuple[tuple[int, int], ...]
"""Positions of numbers in a text that bound one end of a range, each with an amount to subtract from the number."""
_Range = tuple[str, int, int, int, _NumberOffsets, _NumberOffsets]
"""A range in a shape: attribute, size, the range before the text's numbers narrow it, and the numbers for either end."""
_Shape = tuple[_Range, ...]

_NUMBER_HOLE: Final = "\0"
_number_pattern = re.compile(r"""(?<![\w.'"])(0|[1-9][0-9]{0,8})(?![\w.'"])""")
_comparison_pattern = re.compile(
    r"""\s*([A-Za-z_]\w*|"[^"\0]+")(?:\s*(>=|<=|=|>|<)\s*(?:\0|('[^'\0]*'))|\s+BETWEEN\s+\0\s+AND\s+\0)""",
    re.IGNORECASE | re.ASCII,
)
_and_pattern = re.compile(r"\s+AND\s", re.IGNORECASE | re.ASCII)


def predicate_of(ranges: Ranges) -> Predicate:
    """Return the predicate of these ranges in normal form."""
    leaves = [Codes(attribute, size, (low, high)) for attribute, size, low, high in ranges]
    if len(leaves) > 1:
        return AllOf(tuple(leaves))
    return leaves[0] if leaves else TRUE


class ShapeCache:
    """Caches the shapes of predicates, which are their texts without numbers; thread-safe."""

    def __init__(self, find: Callable[[str], Attribute | None], parse: Callable[[str], Predicate]) -> None:
        """``find`` returns an attribute by its name, and ``parse`` parses texts of unknown shape."""
        self._find = find
        self._parse = parse
        self._shapes: dict[tuple[str, ...], _Shape] = {}

    def ranges(self, text: str) -> Ranges | None:
        """Return the ranges of a text; None if its shape is unknown, or if a range is empty."""
        if len(text) > MAX_SHAPED_LENGTH:
            return None
        parts = _number_pattern.split(text)
        known = self._shapes.get(tuple(parts[::2]))
        return None if known is None else _ranges_of_shape(known, parts)

    def parse(self, text: str) -> Predicate:
        """Parse a text by its shape or, if that is unknown, with the parser."""
        if (ranges := self.ranges(text)) is not None:
            return predicate_of(ranges)
        predicate = self._parse(text)
        if len(text) <= MAX_SHAPED_LENGTH:
            self._learn_shape(text, predicate)
        return predicate

    def _learn_shape(self, text: str, predicate: Predicate) -> None:
        parts = _number_pattern.split(text)
        shape = tuple(parts[::2])
        if (
            shape in self._shapes
            or _NUMBER_HOLE in text
            or (found := self._find_ranges(shape)) is None
            or (ranges := _ranges_of_shape(found, parts)) is None
        ):
            return
        if predicate_of(ranges) == predicate:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes = {}
            self._shapes[shape] = found

    def _find_ranges(self, shape: tuple[str, ...]) -> _Shape | None:
        """Find the ranges of a shape; None if it is not a conjunction of ranges."""
        text = _NUMBER_HOLE.join(shape)
        ranges: dict[str, _Range] = {}
        at, place = 0, 1
        while (item := _comparison_pattern.match(text, at)) is not None:
            name, operator, constant = item.groups()
            if (attribute := self._find(name.strip('"'))) is None:
                return None
            size = attribute.domain.size
            known = ranges.get(attribute.name) or (attribute.name, size, 0, size, (), ())
            if (cut := _narrow_range(attribute, known, operator, constant, place)) is None:
                return None
            ranges[attribute.name] = cut
            place += 2 * item[0].count(_NUMBER_HOLE)
            if not text[item.end() :].strip():
                return tuple(ranges[name] for name in sorted(ranges))
            if (word := _and_pattern.match(text, item.end())) is None:
                return None
            at = word.end()
        return None


def _narrow_range(
    attribute: Attribute, known: _Range, operator: str | None, constant: str | None, place: int
) -> _Range | None:
    """Narrow a range by a comparison, or by BETWEEN if ``operator`` is None; None if the result is not a range."""
    name, size, low, high, lows, highs = known
    domain = attribute.domain
    if constant is not None:
        if operator != "=" or not isinstance(domain, Categories) or constant[1:-1] not in domain.values:
            return None
        code = attribute.code(constant[1:-1])
        return (name, size, max(low, code), min(high, code + 1), lows, highs)
    if not isinstance(domain, Integers):
        return None
    if operator in {None, ">=", "=", ">"}:
        lows += ((place, domain.minimum - (operator == ">")),)
    if operator in {None, "<=", "=", "<"}:
        highs += ((place if operator else place + 2, domain.minimum - (operator != "<")),)
    return (name, size, low, high, lows, highs)


def _ranges_of_shape(shape: _Shape, parts: Sequence[str]) -> Ranges | None:
    found = []
    for attribute, size, least, most, lows, highs in shape:
        low, high = least, most
        for place, offset in lows:
            low = max(low, int(parts[place]) - offset)
        for place, offset in highs:
            high = min(high, int(parts[place]) - offset)
        if low >= high:
            return None
        if low > 0 or high < size:
            found.append((attribute, size, low, high))
    return tuple(found)
