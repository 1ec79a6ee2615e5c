"""docs/auditing.md lists the cases of the audit as they are, and shows findings of these alone."""

from __future__ import annotations

import re
from pathlib import Path

from stream.audit import Case, cases_of

PAGE = (Path(__file__).parents[2] / "docs" / "auditing.md").read_text(encoding="utf-8")


def row(case: Case) -> str:
    """A case as the page lists it."""
    claimed = f"{case.epsilon:g}" + (f", δ {case.delta:g}" if case.delta else "")
    cells = (case.kind, case.stream.get("calibration", "best"), claimed, str(case.source["kind"]), case.pair)
    return f"| {' | '.join(cells)} |"


def test_the_page_lists_the_shipped_cases() -> None:
    _, _, listed = PAGE.partition("| mechanism | calibration | ε | source | neighbours |\n")
    rows = listed.split("\n\n", 1)[0].splitlines()[1:]
    wanted = [row(case) for case in cases_of([])]
    assert rows == wanted, "the table is now\n" + "\n".join(wanted)


def test_the_findings_that_the_page_shows_are_of_shipped_cases() -> None:
    shown = re.findall(r"^\| (\S+) \| \S+ \| ([^|]+) \| ([^|]+) \| [^|]+ \| \d+ : \d+ \|", PAGE, re.MULTILINE)
    assert len(shown) > 3
    cases = {(case.kind, f"{case.epsilon:g}", case.pair) for case in cases_of([])}
    assert set(shown) <= cases
