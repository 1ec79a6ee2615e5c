"""Results as a person reads them: the number, and its error bar beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape
from typing import Any, Final

from schemas import Amount, Answer, GrantRecord, Source
from stream.formatting import bound, estimate
from stream.optional_packages import needed
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    NOTHING,
    Cost,
    charged_answers,
    realised_cost,
    to_amount,
)

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


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a text for a formula by, which somebody else may have written."""


def cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: a text that begins like one is told to be a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


_DECISIONS: Final = {"above_threshold", "numeric_sparse"}
_EACH: Final = {"laplace", "noisy_max", "exponential"}


def cost_of(grant: GrantRecord, source: Source, answer: Answer) -> Fraction:
    """The ε by adding up that an answer added to its stream's loss; its ``price`` where it was asked with an ``alpha``."""
    if answer.price is not None and _counts(answer):
        return Fraction(answer.price)
    return Fraction(_added(grant, source, answer).loss, EPSILON_UNITS)


def total_cost(grant: GrantRecord, source: Source, answers: Iterable[Answer]) -> Amount:
    """What answers of a stream added to its loss together, in all its units.

    A stream whose ρ, or whose δ, counts as spent in full from its first answer on loses nothing by the others.
    """
    found = list(answers)
    added = sum((_added(grant, source, one) for one in found if one.price is None), NOTHING)
    amount = to_amount(added, source)
    prices = sum(one.price for one in found if one.price is not None and _counts(one))
    return amount.model_copy(update={"epsilon": amount.epsilon + prices})


def is_charged(grant: GrantRecord, answer: Answer) -> bool:
    """Whether an answer is one of those that the grant pays for by number."""
    if not _counts(answer):
        return False
    kind = grant.spec.mechanism.kind
    if kind in _DECISIONS:
        return answer.outcome == "above"
    return kind in _EACH or answer.basis == "noisy"


def _counts(answer: Answer) -> bool:
    return answer.index is not None and answer.outcome not in {"halted", "rejected"}


def _added(grant: GrantRecord, source: Source, answer: Answer) -> Cost:
    """What a stream had lost before an answer and after it is known from the answer's index and what is left."""
    if answer.index is None or not _counts(answer):
        return NOTHING
    charged, left = is_charged(grant, answer), answer.tops_left
    tops = int(charged) if left is None else charged_answers(grant.calibration, grant.extensions) - left
    before, after = (
        realised_cost(grant.calibration, source.accountant, answered, max(charges, 0), extensions=grant.extensions)
        for answered, charges in ((answer.index, tops - charged), (answer.index + 1, tops))
    )
    return after - before


class Framed(ABC):
    """What has rows can be had as a frame: their columns in the order of first appearance, those left out that are all null."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The rows, each by the names of its columns."""

    def to_polars(self) -> Any:
        """The rows as a polars frame; needs the extra ``polars``."""
        return needed("polars", "polars").DataFrame(self._columns(), strict=False)

    def to_pandas(self) -> Any:
        """The rows as a pandas frame; needs the extra ``pandas``."""
        return needed("pandas", "pandas").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """The rows as an Arrow table; needs the extra ``arrow``."""
        return needed("pyarrow", "arrow").table(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        made = {name: [row.get(name) for row in rows] for name in names}
        return {name: cells for name, cells in made.items() if any(cell is not None for cell in cells)}
