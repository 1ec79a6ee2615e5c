"""Formats rows of results as HTML tables with error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from schemas import Answer
from stream.formatting import cut_to_interval, format_error_bound, format_estimate, format_interval, half_length
from stream.questions.result_text import (
    ERROR_SUFFIX,
    HIGH_SUFFIX,
    LOW_SUFFIX,
    bounds_numbers,
    ends_of,
    shown_alpha,
)

MAX_ROWS = 50
"""Maximum number of rows of a table in a notebook."""

_BAR_WIDTH, _BAR_HEIGHT = 160, 14
"""Size of an error bar in pixels."""


def with_unit_of_alpha(answer: Answer, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return an answer's rows; if α may have another unit than the numbers, ``alpha`` is a text with its unit."""
    if answer.alpha is None or bounds_numbers(answer):
        return rows
    return [{**row, "alpha": shown_alpha(answer) or ""} for row in rows]


def format_html_table(rows: Sequence[Mapping[str, Any]], warnings: Sequence[str] = ()) -> str:
    """Format rows as an HTML table with error bars on one scale, and the warnings below."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name != "id" and any(row.get(name) not in (None, "") for row in rows)
    ]
    shown = rows[:MAX_ROWS]
    scale = _common_scale(shown)
    bars = scale is not None
    head = "".join(f"<th>{escape('±' if name == 'alpha' else name)}</th>" for name in names) + "<th></th>" * bars
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_format_cell(row, name)}</td>" for name in names)
        + (f"<td>{_draw_bar(row, scale)}</td>" if scale is not None else "")
        + "</tr>"
        for row in shown
    )
    more = f"<p>… {len(rows) - MAX_ROWS} more rows</p>" if len(rows) > MAX_ROWS else ""
    below = more + "".join(f"<p>warning: {escape(one)}</p>" for one in warnings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _format_cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, float):
        is_bound = name == "alpha" or name.endswith(ERROR_SUFFIX)
        column = _number_column(name)
        alpha, ends = _alpha_of(row, column), ends_of(row, column)
        if name != column and ends is not None and ends[0] == ends[1] != row[column]:
            return format_interval(ends, row[column])
        if is_bound:
            return format_error_bound(value)
        return format_estimate(value, half_length(ends) if alpha is None else alpha, ends_of(row, name))
    return "" if value is None else escape(str(value))


def _number_column(name: str) -> str:
    """Return the column of numbers to which a column of interval ends belongs; ``name`` for other columns."""
    if name in {"interval_low", "interval_high"}:
        return "estimate"
    return name.removesuffix(LOW_SUFFIX).removesuffix(HIGH_SUFFIX)


def _alpha_of(row: Mapping[str, Any], name: str) -> float | None:
    found = row.get("alpha" if name == "estimate" else name + ERROR_SUFFIX)
    return found if isinstance(found, float) else None


def _bar_ends(row: Mapping[str, Any]) -> tuple[float, float] | None:
    middle, alpha = row.get("estimate"), row.get("alpha")
    if middle is None:
        return None
    if isinstance(alpha, str):  # it may have another unit
        return ends_of(row, "estimate")
    return middle - (alpha or 0.0), middle + (alpha or 0.0)


def _common_scale(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    ends = [end for row in rows if (found := _bar_ends(row)) is not None for end in found]
    if not ends:
        return None
    low, high = min(0.0, *ends), max(0.0, *ends)
    return (low, high) if high > low else (low, low + 1.0)


def _draw_bar(row: Mapping[str, Any], scale: tuple[float, float]) -> str:
    ends = _bar_ends(row)
    if ends is None:
        return ""
    low, high = scale

    def x_of(number: float) -> float:
        return (number - low) / (high - low) * (_BAR_WIDTH - 4) + 2

    left, right, middle = map(x_of, (*ends, cut_to_interval(row["estimate"], ends_of(row, "estimate"))))
    half = _BAR_HEIGHT / 2
    labels = [format_estimate(end, _alpha_of(row, "estimate") or half_length(ends)) for end in ends]
    return (
        f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" role="img" '
        f'aria-label="{labels[0]} to {labels[1]}">'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{half}" y2="{half}" stroke="currentColor"/>'
        f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{half - 4}" y2="{half + 4}" stroke="currentColor"/>'
        f'<line x1="{right:.1f}" x2="{right:.1f}" y1="{half - 4}" y2="{half + 4}" stroke="currentColor"/>'
        f'<circle cx="{middle:.1f}" cy="{half}" r="3" fill="currentColor"/></svg>'
    )
