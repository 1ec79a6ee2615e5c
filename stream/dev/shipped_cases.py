"""Audit cases of the shipped mechanisms.

To add a mechanism, add its cases to ``SHIPPED`` under its kind. A good case uses nearly all of its ε, or
would exceed it after a likely mistake in the code:

- data sets that differ as much as neighbors may, and values for which both outcomes are likely (for
  AboveThreshold near the shift that ``sotto plan`` prints);
- an ε of 1 to 2: smaller losses need too many runs, larger losses show only in very rare events;
- for numbers, a ``resolution`` near the noise scale. If ``event`` is missing, the auditor searches for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stream.dev import audit_cases
from stream.dev.audit_cases import (
    PLAN,
    SENT_SUMS_CASES,
    AuditError,
    Case,
    Side,
    Transcript,
    crossing_values,
    make_case,
    rising_values,
    values_sides,
)

_VALUES: Final = {"kind": "values", "neighbors": "add-remove", "sensitivity": 1.0, "grid": 1.0}
_RECORDS: Final = {"kind": "records"}
_TENTHS: Final = {**_VALUES, "sensitivity": 0.1, "grid": 0.1}
_SEX: Final = {"kind": "table", "path": "audit.parquet", "attributes": {"sex": ["F", "M"]}}
_ADD_REMOVE_TABLE: Final = {**_SEX, "neighbors": "add-remove"}
_REPLACE_TABLE: Final = {**_SEX, "neighbors": "replace"}


def _above_threshold(cutoff: int = 1, *, monotone: bool = False) -> dict[str, Any]:
    return {"kind": "above_threshold", "threshold": 0.0, "cutoff": cutoff, "monotone": monotone}


def _table_sides(query: Mapping[str, Any], one: str, *, times: int = 1) -> tuple[Side, Side]:
    return Side([query] * times, {"sex": list(one)}), Side([query] * times, {"sex": ["F", "M"]})


_VISITS: Final = {**_ADD_REMOVE_TABLE, "person": "who", "contribution": 2}


def _visit_sides(query: Mapping[str, Any], one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Side, Side]:
    def side(people: Mapping[str, str]) -> Side:
        rows = [(who, sex) for who, sexes in people.items() for sex in sexes]
        return Side([query], {"who": [who for who, _ in rows], "sex": [sex for _, sex in rows]})

    return side(one), side(other)


def _only_bottoms(transcript: Transcript) -> bool:
    return all(seen.outcome == "below" for seen in transcript)


def _only_first_is_bottom(transcript: Transcript) -> bool:
    return [seen.outcome == "below" for seen in transcript] == [True] + [False] * (len(transcript) - 1)


def _exceeds_true_sum(transcript: Transcript) -> bool:
    """True if the sum of the numbers exceeds its true value on the higher side, where each number is 1."""
    return sum(seen.numbers[0] for seen in transcript) > len(transcript)


_NUMBERED: Final = {
    "kind": "table",
    "path": "audit.parquet",
    "attributes": {"number": 100},
    "neighbors": "add-remove",
}


def _quantile_side(most: int) -> Side:
    """Ask for a quantile of 501 rows of the least value and ``most`` rows of the largest value."""
    return Side([{"quantile": "number", "q": 0.501}], {"number": [0] * 501 + [99] * most})


_TEXTBOOK: Final = {**PLAN, "calibration": "textbook"}
_HALF_EPSILON: Final = {**PLAN, "epsilon": 0.5}
_COUNT: Final = {"where": "sex = 'M'"}
_SMALL_DELTA: Final = {**PLAN, "delta": 0.001}

_ABOVE_THRESHOLD: Final = (
    # ⊥ and then ⊤ loses exactly ε here.
    make_case("up, down", _above_threshold(), _VALUES, crossing_values(1, 1, 1)),
    make_case("up, down; cutoff 2", _above_threshold(2), _VALUES, crossing_values(3, 1, 2)),
    make_case("4 up, 4 down; cutoff 4", _above_threshold(4), _VALUES, crossing_values(7, 4, 4)),
    make_case("4 up, 4 down; cutoff 8", _above_threshold(8), _VALUES, crossing_values(15, 4, 4)),
    make_case("up, down above the shift", _above_threshold(), _VALUES, crossing_values(3, 1, 1)),
    make_case("4 up, 2 down", _above_threshold(), _VALUES, crossing_values(0, 4, 2), {**PLAN, "epsilon": 3.0}),
    make_case("6 up", _above_threshold(), _VALUES, rising_values(1, 6), event=_only_bottoms),
    make_case("3 up, monotone", _above_threshold(monotone=True), _VALUES, rising_values(0, 3)),
    make_case("4 up, 2 down", _above_threshold(), _VALUES, crossing_values(-1, 4, 2), _TEXTBOOK),
    make_case("4 up, 4 down; cutoff 4", _above_threshold(4), _VALUES, crossing_values(-1, 4, 4), _TEXTBOOK),
    make_case("2 up, 3 down; cutoff 60", _above_threshold(60), _VALUES, crossing_values(35, 2, 3), _SMALL_DELTA),
    make_case(
        "one row more", _above_threshold(monotone=True), _ADD_REMOVE_TABLE, _table_sides(_COUNT, "F", times=3)
    ),
    make_case(
        "up, 5 down; cutoff 2, crashes",
        _above_threshold(2),
        _VALUES,
        crossing_values(3, 1, 5),
        interruption="crash",
        event=_only_first_is_bottom,
    ),
    make_case(
        "up, down; redelivered", _above_threshold(), _VALUES, crossing_values(1, 1, 1), interruption="redelivery"
    ),
    make_case(
        "two streams, one up", _above_threshold(), _VALUES, values_sides((5, 5), (5, 6)), _HALF_EPSILON, streams=2
    ),
)


def _score_sides(*pairs: tuple[float, float]) -> tuple[Side, Side]:
    def side_of(side: int) -> Side:
        scores = [{"name": str(number), "value": pair[side]} for number, pair in enumerate(pairs, start=1)]
        return Side([{"candidates": scores}])

    return side_of(0), side_of(1)


_BY_SEX: Final = {"attributes": ["sex"]}
_GROUPS: Final = {"group_by": ["sex"]}
_MEN_CELL: Final = {"cells": [{"at": {"sex": "M"}}]}

_GROUPED: Final = {
    "kind": "table",
    "path": "audit.parquet",
    "attributes": {"group": ["A", "B", "C"]},
    "neighbors": "replace",
}


def _sides_with_moved_row(queries: Sequence[Mapping[str, Any]], *, rows: int = 50) -> tuple[Side, Side]:
    """One row moves to another group, so that one error of the initial hypothesis grows and another shrinks.

    Two groups have ``rows`` rows each, and the third group has none.
    """
    more = rows + 1
    before, after = [*rows * "A", *more * "B"], [*more * "A", *rows * "B"]
    return Side(queries, {"group": before}), Side(queries, {"group": after})


_THREE_ATTRIBUTES: Final = {
    "kind": "table",
    "path": "audit.parquet",
    "attributes": {name: ["0", "1"] for name in "abc"},
    "neighbors": "replace",
}


def _sides_with_changed_pair(query: Mapping[str, Any]) -> tuple[Side, Side]:
    """One of eight rows changes both attributes of the pair with the largest error."""
    same = {"a": list("00001111"), "b": list("00001111"), "c": list("01010101")}
    other = {**same, "a": list("00001110"), "b": list("00001110")}
    return Side([query], same), Side([query], other)


def _sides_far_from_estimate(query: Mapping[str, Any]) -> tuple[Side, Side]:
    """One of 400 rows changes; the estimate has equal counts in all cells and is far from the rows.

    The estimate of the query's count is exact, so it is not measured.
    """
    same = {"a": list("01") * 200, "b": list("01") * 200, "c": list("01") * 200}
    other = {**same, "b": [*list("01") * 199, "0", "0"]}
    return Side([query], same), Side([query], other)


_ESTIMATED: Final = {"kind": "pmw", "attributes": ["group"], "updates": 1}


def _numeric_sparse(numbers: str) -> dict[str, Any]:
    return {"kind": "numeric_sparse", "threshold": 0.0, "cutoff": 1, "numbers": numbers}


_TEXTS: Final = {**_ADD_REMOVE_TABLE, "texts": {"note": {"kind": "text"}}}
_BY_NOTE: Final = {"group_by": ["note"]}


def _note_sides(one: Sequence[str], other: Sequence[str]) -> tuple[Side, Side]:
    def side(notes: Sequence[str]) -> Side:
        return Side([_BY_NOTE], {"sex": ["F"] * len(notes), "note": list(notes)})

    return side(one), side(other)


_THREE_CATEGORIES: Final = {"kind": "randomized_response", "categories": ["1", "2", "3"]}

SHIPPED: Final[Mapping[str, Sequence[Case]]] = {
    "above_threshold": _ABOVE_THRESHOLD,
    "numeric_sparse": (
        make_case("up, down; fresh", _numeric_sparse("fresh"), _VALUES, crossing_values(1, 1, 1)),
        make_case("up, down; gap", _numeric_sparse("gap"), _VALUES, crossing_values(1, 1, 1)),
    ),
    "laplace": (
        make_case("1 up", "laplace", _VALUES, rising_values(0, 1)),
        make_case("3 up", {"kind": "laplace", "answers": 3}, _VALUES, rising_values(0, 3), resolution=2.0),
        # Many answers with δ > 0 have Gaussian noise.
        make_case(
            "16 up",
            {"kind": "laplace", "answers": 16},
            _VALUES,
            rising_values(0, 16),
            _SMALL_DELTA,
            event=_exceeds_true_sum,
        ),
        # The values are half a grid step off the grid; as doubles they differ by slightly more than 0.1.
        make_case("0.1 up", "laplace", _TENTHS, values_sides((-0.55, -0.45)), {"beta": 0.1}, resolution=0.1),
        make_case(
            "one person with 5 rows more",
            "laplace",
            _VISITS,
            _visit_sides(_COUNT, {"ann": "F"}, {"ann": "F", "ben": "MMMMM"}),
        ),
        make_case(
            "one person in both groups more",
            "laplace",
            _VISITS,
            _visit_sides(_GROUPS, {"ann": "F"}, {"ann": "F", "ben": "FFFMMM"}),
        ),
        # A further person changes the order of people, but must not change which rows of other people count.
        make_case(
            "one person more; whose rows count",
            "laplace",
            _VISITS,
            _visit_sides(
                _GROUPS, dict.fromkeys("bcdefg", "FFMM"), {"ann": "FFFF", **dict.fromkeys("bcdefg", "FFMM")}
            ),
        ),
        # All values are quantiles of the first 1,000 rows; with one row more, only the largest value is a quantile.
        make_case("one row more; quantile", "laplace", _NUMBERED, (_quantile_side(499), _quantile_side(500))),
        *audit_cases.LAPLACE_CASES,
    ),
    "unknown_groups": (
        make_case(
            "one row of a common text more",
            "unknown_groups",
            _TEXTS,
            _note_sides(["a"] * 9, ["a"] * 10),
            _SMALL_DELTA,
        ),
        make_case(
            "one more row, with a text that no other row has",
            "unknown_groups",
            _TEXTS,
            _note_sides(["a"] * 9, [*["a"] * 9, "b"]),
            _SMALL_DELTA,
        ),
        make_case(
            "one more row, with a text that no other row has; no counts",
            {"kind": "unknown_groups", "counts": False},
            _TEXTS,
            _note_sides(["a"] * 9, [*["a"] * 9, "b"]),
            _SMALL_DELTA,
        ),
        *audit_cases.UNKNOWN_GROUPS_CASES,
    ),
    "randomized_response": (
        make_case(
            "another category", _THREE_CATEGORIES, _RECORDS, (Side([{"category": "1"}]), Side([{"category": "2"}]))
        ),
        make_case(
            "a category that is not listed",
            _THREE_CATEGORIES,
            _RECORDS,
            (Side([{"category": "1"}]), Side([{"category": "none"}])),
        ),
    ),
    "noisy_max": (make_case("1 up, 2 down", "noisy_max", _VALUES, _score_sides((0, 1), (1, 0), (1, 0))),),
    "exponential": (make_case("1 up, 2 down", "exponential", _VALUES, _score_sides((0, 1), (1, 0), (1, 0))),),
    "histogram": (
        make_case("one row more", {"kind": "histogram", **_BY_SEX}, _ADD_REMOVE_TABLE, _table_sides(_GROUPS, "F")),
        make_case(
            "one row changed", {"kind": "histogram", **_BY_SEX}, _REPLACE_TABLE, _table_sides(_GROUPS, "FF")
        ),
        *audit_cases.HISTOGRAM_CASES,
    ),
    "running_count": (*SENT_SUMS_CASES, *audit_cases.RUNNING_CASES, *audit_cases.RUNNING_TEXTS_CASES),
    "lazy_histogram": (
        make_case(
            "one row more", {"kind": "lazy_histogram", **_BY_SEX}, _ADD_REMOVE_TABLE, _table_sides(_MEN_CELL, "F")
        ),
    ),
    "pmw": (
        make_case(
            "up, down",
            {**_ESTIMATED, "warm_start": 0},
            _GROUPED,
            _sides_with_moved_row([{"where": "\"group\" = 'A'"}, {"where": "\"group\" = 'B'"}], rows=65),
            resolution=8.0,
        ),
        make_case(
            "one row changed; opening",
            {**_ESTIMATED, "warm_start": 1},
            _GROUPED,
            _sides_with_moved_row([{"group_by": ["group"]}], rows=4),
        ),
        make_case(
            "one row changed; chosen pair",
            {"kind": "pmw", "attributes": list("abc"), "warm_start": "workload", "updates": 1},
            _THREE_ATTRIBUTES,
            _sides_with_changed_pair({"group_by": ["a", "b"]}),
        ),
        # Nothing is measured, so every number but the typical error is the same on both sides.
        make_case(
            "one row changed; typical error",
            {"kind": "pmw", "attributes": list("abc"), "warm_start": 0, "typical_error": True},
            _THREE_ATTRIBUTES,
            _sides_far_from_estimate({"where": "(a = '0' AND b = '0') OR (a = '1' AND b = '0')"}),
            resolution=0.25,
        ),
        make_case(
            "up, down; worst case",
            {"kind": "pmw", "attributes": ["group"], "worst_case": True, "gap": 0.5},
            _GROUPED,
            _sides_with_moved_row([{"where": "\"group\" = 'A'"}, {"where": "\"group\" = 'B'"}], rows=150),
            resolution=8.0,
        ),
    ),
    "sparse_pmw": (
        make_case(
            "up, down",
            {"kind": "sparse_pmw", "attributes": ["group"], "updates": 1, "gap": 0.05, "sparsity": 1},
            _GROUPED,
            _sides_with_moved_row([{"cells": [{"at": {"group": "A"}}]}, {"cells": [{"at": {"group": "B"}}]}]),
            resolution=2.0,
        ),
    ),
    "sparse_project": (
        make_case(
            "one row more",
            {"kind": "sparse_project", "projections": 4, **_BY_SEX},
            _ADD_REMOVE_TABLE,
            _table_sides(_MEN_CELL, "F"),
            _SMALL_DELTA,
        ),
    ),
}


def cases_of(kinds: Sequence[str] = ()) -> tuple[Case, ...]:
    """Return the cases of some mechanisms or of all; raise AuditError for a kind without cases."""
    for kind in kinds:
        if kind not in SHIPPED:
            raise AuditError(f"mechanism: there is no audit of '{kind}'; give one of {', '.join(sorted(SHIPPED))}")
    return tuple(case for kind, cases in SHIPPED.items() if not kinds or kind in kinds for case in cases)
