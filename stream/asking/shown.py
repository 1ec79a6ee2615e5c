"""Results as a person reads them: the number, and its error bar beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from schemas import Answer
from stream.figures import bound, estimate

ERROR = " ±"
"""Behind a column's name: the column of what its numbers are off by at most, with the stream's probability 1 − β."""

MAX_LINES = 10
"""Most results that are listed in a terminal."""

MAX_ROWS = 50
"""Most rows of a table in a notebook."""

_WIDTH, _HEIGHT = 160, 14
"""The picture of an error bar, in pixels."""


def line(answer: Answer) -> str:
    """One line: stream, what it says with its ± and its price, and the privacy loss of the stream so far."""
    parts = [f"{answer.stream}{about(answer)}:"]
    if answer.estimate is not None:
        parts.append(estimate(answer.estimate, answer.alpha))
    elif answer.estimates is not None:
        shown = ", ".join(estimate(number, answer.alpha) for number in answer.estimates[:MAX_LINES])
        more = len(answer.estimates) - MAX_LINES
        parts.append(f"[{shown}{f', … {more} more' if more > 0 else ''}]")
    elif answer.choice is not None:
        parts.append(f"'{answer.choice}'")
    else:
        parts.append(answer.outcome)
    if answer.alpha is not None:
        parts.append(f"± {bound(answer.alpha)}")
    if answer.reason:
        parts.append(f"({answer.reason})")
    if answer.price is not None and answer.outcome != "rejected":
        parts.append(f"for ε {answer.price:.4g}")
    if answer.spent is not None:
        parts.append(f"· ε {answer.spent.epsilon:.4g} spent")
    return " ".join(parts)


def about(answer: Answer) -> str:
    """The window and the group of a standing stream's answer, behind the stream's name; nothing of any other."""
    if answer.window is None:
        return ""
    group = "".join(f", {name} {value}" for name, value in (answer.group or {}).items())
    return f" [{answer.window.start} … {answer.window.end}{group}]"


def told(warnings: Sequence[str]) -> list[str]:
    """Warnings as they stand behind a line."""
    return [f"(warning: {one})" for one in warnings]


def lines(answers: Sequence[Answer]) -> str:
    """How many there are, and the first of them."""
    shown = [f"<{len(answers)} results>", *(f"  {answer}" for answer in answers[:MAX_LINES])]
    if len(answers) > MAX_LINES:
        shown.append(f"  … {len(answers) - MAX_LINES} more")
    return "\n".join(shown)


def table(rows: Sequence[Mapping[str, Any]], warnings: Sequence[str] = ()) -> str:
    """An HTML table; beside each number its interval, all drawn to one scale; below it the warnings."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name != "id" and any(row.get(name) is not None for row in rows)
    ]
    shown = rows[:MAX_ROWS]
    scale = _scale(shown)
    bars = scale is not None
    head = "".join(f"<th>{escape('±' if name == 'alpha' else name)}</th>" for name in names) + "<th></th>" * bars
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_cell(row, name)}</td>" for name in names)
        + (f"<td>{_bar(row, scale)}</td>" if scale is not None else "")
        + "</tr>"
        for row in shown
    )
    more = f"<p>… {len(rows) - MAX_ROWS} more rows</p>" if len(rows) > MAX_ROWS else ""
    below = more + "".join(f"<p>warning: {escape(one)}</p>" for one in warnings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, float):
        is_bound = name == "alpha" or name.endswith(ERROR)
        return bound(value) if is_bound else estimate(value, _alpha(row, name))
    return "" if value is None else escape(str(value))


def _alpha(row: Mapping[str, Any], name: str) -> float | None:
    """What the number of a column is off by; None where its row does not say."""
    found: float | None = row.get("alpha" if name == "estimate" else name + ERROR)
    return found


def _ends(row: Mapping[str, Any]) -> tuple[float, float] | None:
    middle = row.get("estimate")
    if middle is None:
        return None
    alpha = row.get("alpha") or 0.0
    return middle - alpha, middle + alpha


def _scale(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The ends of the axis that all rows share, 0 among them; None if there is no number to draw."""
    ends = [end for row in rows if (found := _ends(row)) is not None for end in found]
    if not ends:
        return None
    low, high = min(0.0, *ends), max(0.0, *ends)
    return (low, high) if high > low else (low, low + 1.0)


def _bar(row: Mapping[str, Any], scale: tuple[float, float]) -> str:
    ends = _ends(row)
    if ends is None:
        return ""
    low, high = scale

    def at(number: float) -> float:
        return (number - low) / (high - low) * (_WIDTH - 4) + 2

    left, right, middle = at(ends[0]), at(ends[1]), at(row["estimate"])
    half = _HEIGHT / 2
    told = [estimate(end, _alpha(row, "estimate")) for end in ends]
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{told[0]} to {told[1]}">'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{half}" y2="{half}" stroke="currentColor"/>'
        f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{half - 4}" y2="{half + 4}" stroke="currentColor"/>'
        f'<line x1="{right:.1f}" x2="{right:.1f}" y1="{half - 4}" y2="{half + 4}" stroke="currentColor"/>'
        f'<circle cx="{middle:.1f}" cy="{half}" r="3" fill="currentColor"/></svg>'
    )
