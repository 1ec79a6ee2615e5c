"""The definition of a table and its rows, in the types that users pass."""

from __future__ import annotations

from typing import Any

from tests.builders import source

ATTRIBUTES: dict[str, Any] = {
    "age": {"kind": "integers", "minimum": 17, "maximum": 90},
    "hours-per-week": {"kind": "integers", "minimum": 1, "maximum": 99, "outside": "reject"},
    "date": {"kind": "integers", "minimum": 1, "maximum": 31},
    "sex": ["F", "M"],
    "bmi": {"kind": "bins", "edges": [10.0, 18.5, 60.0]},
}
DOCUMENT = source("people", "table", epsilon=100.0, attributes=ATTRIBUTES)
ROWS: dict[str, list[Any]] = {
    "age": [30] * 40,
    "hours-per-week": [40] * 40,
    "date": [3] * 40,
    "sex": ["F"] * 40,
    "bmi": [12.0] * 40,
}
