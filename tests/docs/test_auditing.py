"""The findings in docs/auditing.md belong to shipped cases."""

from __future__ import annotations

import re
from pathlib import Path

from stream.dev.shipped_cases import cases_of

PAGE = (Path(__file__).parents[2] / "docs" / "auditing.md").read_text(encoding="utf-8")


def test_shown_findings_are_of_shipped_cases() -> None:
    shown = re.findall(r"^\| (\S+) \| \S+ \| ([^|]+) \| ([^|]+) \| [^|]+ \| \d+ : \d+ \|", PAGE, re.MULTILINE)
    assert len(shown) > 1
    cases = {(case.kind, f"{case.epsilon:g}", case.pair) for case in cases_of()}
    assert set(shown) <= cases
