"""Tables of the measurements, on the terminal and in the document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as RichTable

from benchmarks.accuracy.figures import Curve, draw_bars, draw_curves
from benchmarks.accuracy.parts import SINGLES, main_table, other_tables, questions_curve, rows_curve
from benchmarks.accuracy.runs import Case, Measured, median
from benchmarks.accuracy.tasks import DEEP, DIAMONDS
from benchmarks.report import console, write_between

DOCUMENT = Path("docs/accuracy.md")
BARS, CURVES = Path("docs/accuracy-adult.svg"), Path("docs/accuracy-curves.svg")

HEADINGS = ("ε", "δ", "", "largest error", "mean error", "promised", "answered", "charged", "ε spent")
_EXCERPT = (1.0, 0.0)
"""ε and δ of the rows that the document shows."""
_OMITTED = (DEEP, DIAMONDS, SINGLES, "pmw, single attributes first", "pmw, nothing first", "pmw, textbook")
"""Workloads and contenders that the document does not show."""


def show(measured: Measured, cases: Sequence[Case]) -> None:
    """Print the existing runs of some cases."""
    table = RichTable(title="Errors as shares of the rows; medians")
    for heading in ("questions about", "of", *HEADINGS, "keys"):
        table.add_column(heading, justify="left" if not heading else "right")
    for case in cases:
        if runs := measured.of(case):
            rows = "all rows" if case.workload.rows is None else f"{case.workload.rows:,} rows"
            of = (case.workload.name, f"{case.workload.queries:,}, {rows}")
            table.add_row(*of, *_row(measured, case), str(len(runs)))
    console.print(table)


def _row(measured: Measured, case: Case) -> tuple[str, ...]:
    runs = measured.of(case)
    return (
        f"{case.epsilon:g}",
        f"{case.delta:g}",
        case.contender,
        *_errors(measured, case),
        *(
            _said(median(runs, figure), form)
            for figure, form in (("answered", ",.0f"), ("charged", ",.0f"), ("spent", ".3g"))
        ),
    )


def _errors(measured: Measured, case: Case) -> tuple[str, ...]:
    runs = measured.of(case)
    forms = (("largest", ".4f"), ("mean", ".5f"), ("promised", ".4f"))
    return tuple(_said(median(runs, figure), form) for figure, form in forms)


def _said(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def write(measured: Measured) -> None:
    """Write the table between its marks in the document, and draw the figures."""
    main, others = list(main_table()), list(other_tables())
    curves = list(questions_curve()), list(rows_curve())
    shown = [
        case
        for case in (*main, *others)
        if (case.epsilon, case.delta) == _EXCERPT
        and case.contender not in _OMITTED
        and case.workload.name not in _OMITTED
    ]
    write_between(DOCUMENT, "<!-- excerpt -->", "<!-- end of excerpt -->", "\n".join(_excerpt(measured, shown)))
    draw_bars(measured, main, BARS)
    pictures = (Curve(curves[0], "questions", "queries"), Curve(curves[1], "rows (5,000 questions)", "rows"))
    draw_curves(measured, pictures, CURVES)
    console.print(f"Written to {DOCUMENT}, {BARS} and {CURVES}")


def _excerpt(measured: Measured, cases: Sequence[Case]) -> list[str]:
    """Return a table with a row per contender and a column per workload: largest and mean error, and the promise, if any."""
    cells = {
        (case.contender, case.workload.name): " / ".join(one for one in _errors(measured, case) if one != "–")
        for case in cases
        if measured.of(case)
    }
    workloads = dict.fromkeys(name for _, name in cells)
    rows = [
        (contender, *(cells.get((contender, name), "–") for name in workloads))
        for contender in dict.fromkeys(contender for contender, _ in cells)
    ]
    return _markdown(("", *workloads), rows)


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (headings, ["---"] * len(headings), *rows)]
