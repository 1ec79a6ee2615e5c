"""What commands print fits a terminal of 80 columns, and a narrower one, with every word whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stream.cli.output import make_table
from stream.cli.run.demo_command import COLUMNS, _row
from stream.dev.audit import audit_all, cases_of


def printed(width: int, title: str, columns: list[str], rows: list[list[str]]) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(make_table(console, title, columns, rows, console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


COLUMNS_OF_STREAMS = ["stream", "source", "mechanism", "state", "cost", "spent", "charged"]
ROW = [f"fever-watch-{'x' * 20}", "patients-of-2026", "online_private_multiplicative_weights", "exhausted"]
ROWS = [[*ROW, "ρ 0.002 (ε 0.1 added up)", "ε 1.23457", "3 / 12,000"]]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_no_word_is_cut_at_any_width(width: int) -> None:
    text = printed(width, "1 streams", COLUMNS_OF_STREAMS, ROWS)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for word in " ".join([*COLUMNS_OF_STREAMS, *ROWS[0]]).split():
        assert word in text


def test_what_fits_is_a_table_and_what_does_not_is_one_row_after_the_other() -> None:
    assert "┃" in printed(200, "streams", COLUMNS_OF_STREAMS, ROWS)
    narrow = printed(80, "streams", COLUMNS_OF_STREAMS, ROWS).splitlines()
    assert narrow[1].rstrip() == ROW[0]
    assert narrow[2].rstrip() == "  source     patients-of-2026"


def test_a_long_text_gives_way_before_a_long_name() -> None:
    text = printed(60, "", ["name", "text"], [["a-name-of-thirty-letters-in-all", "some words " * 9]])
    assert "a-name-of-thirty-letters-in-all" in text
    assert "┃" in text


def test_the_audits_verdicts_are_whole_at_80_columns() -> None:
    rows = [_row(finding) for finding in audit_all(cases_of(["laplace"]), runs=100, seed=1, false_alarm=0.01)]
    text = printed(80, "audit", list(COLUMNS), rows)
    for word in " ".join(cell for row in rows for cell in row).split():
        assert word in text
