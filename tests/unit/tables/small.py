"""Builds small tables, reads their rows by hand and draws predicates with their meaning in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from schemas import Bins, Categories, Domain, Integers, TableSource
from tests import builders

KEY = bytes(range(32))
"""The key of table fingerprints, which also chooses the rows of a person that count."""

unhurried = settings(deadline=None)
"""Settings of properties that load tables: the first load is slow."""

ATTRIBUTES: dict[str, Domain] = {
    "age": Integers(minimum=17, maximum=26),
    "education-num": Integers(minimum=-3, maximum=3, outside="reject"),
    "sex": Categories(values=("F", "M", "it's")),
    "country": Categories(values=("DE", "FR", "IT", "?"), other="?"),
    "income": Bins(edges=(-1.5, 0.0, 0.1, 10.0)),
    "weight": Bins(edges=(0.0, 50.0, 100.0), outside="reject"),
}

Value = int | float | str
Row = dict[str, Value]
Cell = str | int | float | bool | None
Test = Callable[[Row], bool]


def source(
    attributes: Mapping[str, Domain] = ATTRIBUTES,
    path: str | Path = "unused.csv",
    name: str = "small",
    **fields: Any,
) -> TableSource:
    declared = {"epsilon": 1.0, "path": str(path), "attributes": dict(attributes), **fields}
    found: TableSource = builders.parse_source(builders.source(name, "table", **declared))
    return found


def columns(rows: Sequence[Mapping[str, Cell]]) -> dict[str, list[Cell]]:
    return {name: [row[name] for row in rows] for name in ATTRIBUTES}


def read_by_hand(row: Mapping[str, Cell]) -> Row | None:
    """Return the row's values by the documented rules, without the code under test; None if it is left out."""
    values = {name: _read_cell(domain, row[name]) for name, domain in ATTRIBUTES.items()}
    kept = {name: value for name, value in values.items() if value is not None}
    return kept if len(kept) == len(values) else None


def code_by_hand(domain: Domain, value: Value) -> int:
    """Return the code of a value that was read by hand."""
    if isinstance(domain, Categories):
        return [*domain.values].index(str(value))
    if isinstance(domain, Integers):
        return int(value) - domain.minimum
    assert isinstance(domain, Bins)
    return max(place for place, edge in enumerate(domain.edges[:-1]) if edge <= float(value))


def _read_cell(domain: Domain, cell: Cell) -> Value | None:
    if isinstance(domain, Categories):
        return cell if isinstance(cell, str) and cell in domain.values else domain.other
    if isinstance(domain, Integers):
        low, high = float(domain.minimum), float(domain.maximum)
    else:
        assert isinstance(domain, Bins)
        low, high = domain.edges[0], domain.edges[-1]
    value = _read_number(cell)
    if value is None or (isinstance(domain, Integers) and math.isfinite(value) and value != int(value)):
        return None
    inside = min(max(value, low), high)
    return None if domain.outside == "reject" and inside != value else inside


def _read_number(cell: Cell) -> float | None:
    try:
        value = math.nan if cell is None or isinstance(cell, bool) else float(cell)
    except ValueError:
        return None
    return None if math.isnan(value) else value


rows: st.SearchStrategy[Mapping[str, Cell]] = st.fixed_dictionaries(
    {
        "age": st.one_of(
            st.integers(15, 28), st.sampled_from(["20", " 21 ", "22.0", "22.5", "old", "", None, math.nan])
        ),
        "education-num": st.one_of(st.integers(-4, 4), st.sampled_from(["-2", "+2", "1e0", "nan", "inf", None])),
        "sex": st.sampled_from(["F", "M", "it's", "X", " F", "", None]),
        "country": st.sampled_from(["DE", "FR", "IT", "?", "de", "", None]),
        "income": st.one_of(
            st.floats(-3, 12),
            st.sampled_from([-1.5, 0.0, 0.1, 10.0, math.inf, -math.inf, math.nan, "0.1", "-inf", "x", None]),
        ),
        "weight": st.one_of(st.floats(-10, 110), st.sampled_from([0, 50, 100, "100.0", "100.1", None])),
    },
)


@dataclass(frozen=True)
class PredicateCase:
    """A predicate as text, and its meaning as a Python function of one row."""

    text: str
    test: Test


OPERATORS: dict[str, Callable[[Value, Value], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "<>": "<>", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

NAMES = {
    "age": ["age", "AGE", '"age"', "(age)"],
    "education-num": ['"education-num"', '"Education-Num"'],
    "sex": ["sex", '"sex"'],
    "country": ["country", "Country"],
    "income": ["income"],
    "weight": ['"weight"'],
}


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def _comparison(draw: st.DrawFn, name: str, signs: Sequence[str], literals: Mapping[str, Value]) -> PredicateCase:
    written = draw(st.sampled_from(NAMES[name]))
    sign = draw(st.sampled_from(signs))
    literal = draw(st.sampled_from(sorted(literals)))
    value, compare = literals[literal], OPERATORS[sign]
    mirrored = draw(st.booleans())
    text = f"{literal} {MIRRORED[sign]} {written}" if mirrored else f"{written} {sign} {literal}"
    return PredicateCase(text, lambda row: compare(row[name], value))


@st.composite
def _between(draw: st.DrawFn, name: str, literals: Mapping[str, float]) -> PredicateCase:
    low, high = draw(st.sampled_from(sorted(literals))), draw(st.sampled_from(sorted(literals)))
    negated = draw(st.booleans())
    text = f"{draw(st.sampled_from(NAMES[name]))} {'NOT ' if negated else ''}BETWEEN {low} AND {high}"
    return PredicateCase(text, lambda row: (literals[low] <= float(row[name]) <= literals[high]) != negated)


@st.composite
def _membership(draw: st.DrawFn, name: str, literals: Mapping[str, Value]) -> PredicateCase:
    listed = draw(st.lists(st.sampled_from(sorted(literals)), min_size=1, max_size=8))
    negated = draw(st.booleans())
    text = f"{draw(st.sampled_from(NAMES[name]))} {'not ' if negated else ''}in ({', '.join(listed)})"
    return PredicateCase(text, lambda row: (row[name] in {literals[literal] for literal in listed}) != negated)


def _numbers(*texts: str) -> dict[str, float]:
    return {text: float(text) for text in texts}


AGES = _numbers("-5", "16", "17", "18.0", "20", "20.5", "2.2e1", "25", "26", "27", "1e9")
LEVELS = _numbers("-4", "-3", "-1.5", "-0.5", "0", "2", "3", "4")
SEXES: dict[str, Value] = {quoted(value): value for value in ("F", "M", "it's")}
COUNTRIES: dict[str, Value] = {quoted(value): value for value in ("DE", "FR", "IT", "?")}

leaves = st.one_of(
    st.sampled_from([PredicateCase("TRUE", lambda _: True), PredicateCase("false", lambda _: False)]),
    _comparison("age", list(OPERATORS), AGES),
    _comparison("education-num", list(OPERATORS), LEVELS),
    _comparison("sex", ["=", "<>", "!="], SEXES),
    _comparison("country", ["=", "<>", "!="], COUNTRIES),
    _comparison("income", ["<", ">="], _numbers("-1.5", "0", "0.1")),
    _comparison("income", ["<=", ">"], _numbers("10", "1e1")),
    _comparison("weight", ["<", ">="], _numbers("0", "50.0")),
    _between("age", AGES),
    _between("education-num", LEVELS),
    _membership("age", AGES),
    _membership("sex", SEXES),
    _membership("country", COUNTRIES),
)


def _joined(parts: list[PredicateCase], word: str) -> PredicateCase:
    text = f" {word} ".join(f"({part.text})" for part in parts)
    quantifier = all if word == "AND" else any
    return PredicateCase(text, lambda row: quantifier(part.test(row) for part in parts))


def _negated(part: PredicateCase) -> PredicateCase:
    return PredicateCase(f"NOT ({part.text})", lambda row: not part.test(row))


def _grown(inner: st.SearchStrategy[PredicateCase]) -> st.SearchStrategy[PredicateCase]:
    return st.one_of(
        st.builds(_joined, st.lists(inner, min_size=2, max_size=4), st.sampled_from(["AND", "OR"])),
        st.builds(_negated, inner),
    )


predicates = st.recursive(leaves, _grown, max_leaves=10)

flat_predicates: st.SearchStrategy[tuple[list[list[tuple[bool, PredicateCase]]], str]] = st.lists(
    st.lists(st.tuples(st.booleans(), leaves), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
).map(
    lambda groups: (
        groups,
        " OR ".join(" AND ".join(("NOT " if no else "") + said.text for no, said in group) for group in groups),
    ),
)
"""Predicates without parentheses: NOT binds more tightly than AND, and AND more tightly than OR."""
