"""Formats results as text, converts them to data frames, and computes their cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from schemas import (
    INDEPENDENCE,
    TOO_MANY_TEXTS,
    Amount,
    Answer,
    GrantRecord,
    Query,
    Source,
    TextInterval,
)
from stream.formatting import format_error_bound, format_estimate, format_interval, half_length
from stream.optional_packages import import_or_missing
from stream.privacy.composition.costs import (
    NO_COST,
    Cost,
    charged_answers,
    realised_cost,
    to_amount,
)
from stream.tables.table_errors import quote_name

ERROR_SUFFIX = " ±"
"""The column ``count ±`` has the error bounds of the column ``count``."""

LOW_SUFFIX, HIGH_SUFFIX = " 95% low", " 95% high"
"""The columns ``count 95% low`` and ``count 95% high`` have the ends of the confidence intervals of ``count``."""

INFORMATIVE_SUFFIX = " informative"
"""The column ``count informative`` is false in rows whose number in ``count`` is not informative."""

NUMBER_SUFFIXES = (ERROR_SUFFIX, LOW_SUFFIX, HIGH_SUFFIX, INFORMATIVE_SUFFIX)
"""Endings of the columns that a column of numbers may have beside it."""

MAX_LISTED_RESULTS = 10
"""Maximum number of results that are listed in a terminal."""


def format_answer(answer: Answer) -> str:
    """Format an answer in one line: stream, number with ± and interval, price, and the stream's spent ε."""
    alpha = shown_alpha(answer)
    # Each number of a list has its own interval, which replaces α if the question is unknown.
    has_intervals = alpha is None and answer.intervals is not None
    parts = [f"{answer.stream}{format_window(answer)}:", format_content(answer, with_intervals=has_intervals)]
    if alpha is not None:
        parts.append(f"± {alpha}")
    if answer.interval is not None:
        parts.append(f"(95 %: {format_interval(answer.interval, answer.estimate)})")
    if answer.choice is not None and answer.choice_intervals is not None:
        parts.append(f"(95 %: {format_text_interval(answer.choice_intervals[0])})")
    if answer.typical_error is not None:
        parts.append(f"({format_typical_error(answer)})")
    if answer.reason:
        parts.append(f"({answer.reason})")
    if answer.price is not None and answer.outcome != "rejected":
        parts.append(f"for ε {answer.price:.4g}")
    if answer.spent is not None:
        parts.append(f"· stream spent ε {answer.spent.epsilon:.4g}")
    return " ".join(parts)


_ESTIMATED: Final = {"estimate", "hypothesis", INDEPENDENCE}
"""The bases of numbers without an interval that may be quantiles."""


def _unit_of_alpha(answer: Answer) -> str | None:
    """Return the unit of α, which is empty for that of the numbers; None if the question is unknown."""
    is_unknown = answer.window is None or getattr(answer, "lacks_stream", False)
    if is_unknown and getattr(answer, "query", None) is None:
        return None
    unit: str = getattr(answer, "alpha_unit", "")
    return unit


def shown_alpha(answer: Answer) -> str | None:
    """Format α with its unit, which the question decides; if it is unknown, intervals replace α."""
    if answer.alpha is None:
        return None
    text, unit = format_error_bound(answer.alpha), _unit_of_alpha(answer)
    if unit is not None:
        return text + unit
    if answer.interval or answer.intervals or answer.choice_intervals:
        return None
    return text + ", of a quantile in rows of rank" * (answer.basis in _ESTIMATED)


def bounds_numbers(answer: Answer) -> bool:
    """Return whether α is in the unit of the numbers, so far as this is known."""
    return answer.alpha is not None and shown_alpha(answer) == format_error_bound(answer.alpha)


def format_number(
    answer: Answer, number: float, ends: tuple[float, float] | None, *, grouped: bool = False
) -> str:
    """Format a number of an answer with the digits of α or, if α may have another unit, of its interval ``ends``."""
    bound = answer.alpha if bounds_numbers(answer) else half_length(ends)
    return format_estimate(number, bound, ends, grouped=grouped)


def format_content(answer: Answer, *, with_intervals: bool = False) -> str:
    """Format the numbers, texts or groups of an answer or, if it has none, its outcome.

    ``with_intervals`` adds to each number or text of a list its group, if it is known, and its 95 % interval.
    """
    names = _quoted_group_names(answer, all_groups=with_intervals)
    if answer.estimate is not None:
        return format_number(answer, answer.estimate, answer.interval)
    if answer.choice is not None:
        return f"'{answer.choice}'"
    if answer.estimates is not None:
        found = format_numbers(answer, with_intervals=with_intervals)
    elif answer.choices is not None:
        found = [quote_name(one) for one in answer.choices]
        if with_intervals:
            found = _prefix_names(names, format_choices(answer))
    elif names is not None:
        found = names
    else:
        return answer.outcome
    more = len(found) - MAX_LISTED_RESULTS
    return f"[{', '.join(found[:MAX_LISTED_RESULTS])}{f', … {more} more' if more > 0 else ''}]"


def format_choices(answer: Answer) -> list[str]:
    """Quote the dates or categories of an answer, each with its 95 % interval if it has one."""
    ends = [f" (95 %: {format_text_interval(one)})" for one in answer.choice_intervals or ()]
    return list(map("".join, zip(map(quote_name, answer.choices or ()), ends or repeat(""), strict=False)))


def format_text_interval(ends: TextInterval) -> str:
    """Format an interval of dates or ordered categories."""
    return f"{ends[0]} to {ends[1]}"


def format_typical_error(answer: Answer) -> str:
    """Format the typical error of an answer's numbers; empty if the answer has none."""
    found = answer.typical_error
    if found is None:
        return ""
    query: Query | None = getattr(answer, "query", None)
    unit = "" if query is None or query.fraction else " rows"
    return f"typical error about {float(f'{found:.2g}'):g}{unit}"


def format_numbers(answer: Answer, *, with_intervals: bool) -> list[str]:
    """Format the numbers of an answer; if groups were released, each number follows the name of its group.

    ``with_intervals`` adds the names of other groups, if they are known, and the 95 % intervals.
    """
    numbers = [
        format_number(answer, number, ends)
        + (f" (95 %: {format_interval(ends, number)})" if with_intervals and ends is not None else "")
        for number, ends in zip(answer.estimates or (), answer.intervals or repeat(None), strict=False)
    ]
    return _prefix_names(_quoted_group_names(answer, all_groups=with_intervals), numbers)


def _prefix_names(names: list[str] | None, texts: list[str]) -> list[str]:
    return texts if names is None else [f"{name} {text}" for name, text in zip(names, texts, strict=True)]


def _quoted_group_names(answer: Answer, *, all_groups: bool) -> list[str] | None:
    """Quote the names of an answer's released groups or, with ``all_groups`` or for a window, of all groups.

    None is returned if there are none.
    """
    groups = getattr(answer, "groups", None) if all_groups or answer.window is not None else None
    if groups is not None:
        return [quote_name(", ".join(map(str, group.values()))) for group in groups]
    if answer.top_groups is not None:
        return [quote_name(", ".join(map(str, group.values()))) for group in answer.top_groups]
    return None if answer.keys is None else [quote_name(text) for text in answer.keys]


def format_window(answer: Answer) -> str:
    """Format the window and group of an answer; empty without a window."""
    if answer.window is None:
        return ""
    group = "".join(f", {name} {value}" for name, value in (answer.group or {}).items())
    return f" [{answer.window.start} … {answer.window.end}{group}]"


def format_warnings(warnings: Sequence[str]) -> list[str]:
    """Format warnings for the end of a line."""
    return [f"(warning: {one})" for one in warnings]


def format_answers(answers: Sequence[Answer]) -> str:
    """Format the number of answers, and the first ``MAX_LISTED_RESULTS`` of them."""
    shown = [f"<{len(answers)} results>", *(f"  {answer}" for answer in answers[:MAX_LISTED_RESULTS])]
    if len(answers) > MAX_LISTED_RESULTS:
        shown.append(f"  … {len(answers) - MAX_LISTED_RESULTS} more")
    return "\n".join(shown)


def list_warnings(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the first ten distinct warnings, and the number of further warnings."""
    lines = tuple(dict.fromkeys(warnings))
    more = len(lines) - MAX_LISTED_RESULTS
    return lines if more <= 0 else (*lines[:MAX_LISTED_RESULTS], f"and {more:,} more warnings")


def ends_of(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the ends of the confidence interval of a row's number in column ``name``; None without an interval."""
    is_result = name == "estimate"
    low = row.get("interval_low" if is_result else name + LOW_SUFFIX)
    high = row.get("interval_high" if is_result else name + HIGH_SUFFIX)
    return None if low is None or high is None else (low, high)


_FORMULA_STARTS: Final = (*"=+-@\t\r\n", *"\uff1d\uff0b\uff0d\uff20")
"""First characters of a formula in spreadsheets; the last four are full-width forms of = + - @."""


def quote_formula(value: Any) -> Any:
    """Quote a text that a spreadsheet would evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


_CHARGED_BASES: Final = {"noisy", TOO_MANY_TEXTS}


def total_cost(grant: GrantRecord, source: Source, answers: Iterable[Answer]) -> Amount:
    """Return the privacy loss (ε, δ, ρ) that these answers added to their stream.

    If a stream's first answer spends all of its ρ or δ, later answers add nothing to ρ or δ.
    """
    answers = list(answers)
    added = sum((_added_loss(grant, source, one) for one in answers if one.price is None), NO_COST)
    amount = to_amount(added, source)
    prices = sum(one.price for one in answers if one.price is not None and _is_answered(one))
    return amount.model_copy(update={"epsilon": amount.epsilon + prices})


def next_costs(
    grant: GrantRecord, source: Source, answered: int, tops: int, surplus: int, questions: int = 1
) -> tuple[Amount, Amount]:
    """Return the loss that the next answers add: if none is charged, and if each has the ordinary charge."""

    def spent(answers: int, charges: int) -> Cost:
        return realised_cost(
            grant.calibration, source.accountant, answers, charges, surplus, extensions=grant.extensions
        )

    now = spent(answered, tops)
    free, charged = (to_amount(spent(answered + questions, tops + more) - now, source) for more in (0, questions))
    return free, charged


def is_charged(answer: Answer) -> bool:
    """Return whether an answer counts against the stream's cutoff of charged answers."""
    return _is_answered(answer) and (answer.outcome == "above" or answer.basis in _CHARGED_BASES)


def _is_answered(answer: Answer) -> bool:
    return answer.index is not None and answer.outcome not in {"halted", "rejected"}


def _added_loss(grant: GrantRecord, source: Source, answer: Answer) -> Cost:
    """Return the loss that an answer adds to its stream, from its index and its ``tops_left``."""
    if answer.index is None or not _is_answered(answer):
        return NO_COST
    charged, left = is_charged(answer), answer.tops_left
    tops = int(charged) if left is None else charged_answers(grant.calibration, grant.extensions) - left
    before, after = (
        realised_cost(grant.calibration, source.accountant, answered, max(charges, 0), extensions=grant.extensions)
        for answered, charges in ((answer.index, tops - charged), (answer.index + 1, tops))
    )
    return after - before


class ConvertibleRows(ABC):
    """Converts rows to data frames; columns that have only null are left out."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as mappings by column name."""

    def to_polars(self) -> Any:
        """Convert the rows to a polars DataFrame; needs the extra ``polars``."""
        return import_or_missing("polars", "polars").DataFrame(self._columns(), strict=False)

    def to_pandas(self) -> Any:
        """Convert the rows to a pandas DataFrame; needs the extra ``pandas``."""
        return import_or_missing("pandas", "pandas").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """Convert the rows to an Arrow table; needs the extra ``arrow``."""
        return import_or_missing("pyarrow", "arrow").table(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        return {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
