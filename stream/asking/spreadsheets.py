"""What a table for a spreadsheet must see to."""

from __future__ import annotations

from typing import Any, Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a text for a formula by, which somebody else may have written."""


def cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: a text that begins like one is told to be a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
