"""Printed tables fit a terminal of 80 columns, and a narrower one, without broken words."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from stream.cli.demo_command import COLUMNS, _finding_row
from stream.cli.output import make_table
from stream.dev.auditor import audit_all
from stream.dev.shipped_cases import cases_of
from tests.commands import run_connected


def printed_table(width: int, title: str, columns: list[str], rows: list[list[str]]) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(make_table(title, columns, rows, console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


COLUMNS_OF_STREAMS = ["stream", "source", "mechanism", "state", "cost", "spent", "charged"]
ROW = [f"fever-watch-{'x' * 20}", "patients-of-2026", "online_private_multiplicative_weights", "exhausted"]
ROWS = [[*ROW, "ρ 0.002 (ε 0.1 added up)", "ε 1.23457", "3 / 12,000"]]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_table_cuts_no_word_at_any_width(width: int) -> None:
    text = printed_table(width, "1 streams", COLUMNS_OF_STREAMS, ROWS)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for word in " ".join([*COLUMNS_OF_STREAMS, *ROWS[0]]).split():
        assert word in text


def test_names_with_brackets_are_printed_unchanged() -> None:
    """Rich would read ``[/usd]`` as the end of a style."""
    for width in (20, 200):
        assert "income [/usd]" in printed_table(width, "", ["income [/usd]", "mechanism"], [["1", "laplace"]])
    document = {"source": "s", "kind": "table", "path": "s.csv", "neighbors": "add-remove", "epsilon": 1.0}
    named = json.dumps({**document, "attributes": {"income [/usd]": 2}})
    plan = run_connected(
        "plan", "--epsilon", "1", "--group-by", "income [/usd]", "--form", "groups", "--source", named
    )
    assert "of form groups by income [/usd]: ε 1" in plan


def test_table_shows_fields_that_do_not_fit_below_their_row() -> None:
    """Columns stay aligned; the other fields follow below with their names, as many as fit into each line."""
    assert "┃" in printed_table(200, "streams", COLUMNS_OF_STREAMS, ROWS)
    narrow = [line.rstrip() for line in printed_table(80, "1 streams", COLUMNS_OF_STREAMS, ROWS).splitlines()]
    assert narrow == [
        "1 streams",
        f"{'stream':<32}  source            state      charged",
        f"{ROW[0]}  patients-of-2026  exhausted  3 / 12,000",
        "  mechanism: online_private_multiplicative_weights",
        "  cost: ρ 0.002 (ε 0.1 added up)   spent: ε 1.23457",
    ]


def test_interval_stays_beside_its_number_in_a_narrow_table() -> None:
    """With several columns "95 %", none stands beside the number of another column."""
    heads = ["month", "sum(spend)", "95 %", "avg(spend)", "95 %", "avg(visits)", "95 %", ""]
    row = ["2025-01", "189,171 ± 8,962", "186,176 to 192,167", "78.646 ± 7.027", "77.096 to 80.189", "5.59 ± 0.57"]
    rows = [[*row, "5.465 to 5.715", "not informative"]]
    assert printed_table(80, "", heads, rows).splitlines()[1:] == [
        "2025-01  189,171 ± 8,962  186,176 to 192,167  78.646 ± 7.027  77.096 to 80.189",
        "  avg(visits): 5.59 ± 0.57   95 %: 5.465 to 5.715   not informative",
    ]
    narrow = printed_table(60, "", heads[1:], [rows[0][1:]]).splitlines()
    assert [narrow[0].split(), narrow[1]] == [["sum(spend)", "95", "%"], "  ".join(row[1:3])]


def test_long_reason_is_shown_whole_below_its_row() -> None:
    """Entries of the trail keep their columns even with a long reason."""
    reason = "refused: source 'patients-of-2026' cannot pay: ε = 1.5 asked, ε = 1 left; " + "ask for less " * 9
    rows = [
        ["12", "2026-11-22 10:00:02", "olga.petrova", "open", "fever-watch-north", reason, "ε 1"],
        ["13", "2026-11-22 10:00:03", "olga.petrova", "close", "fever-watch-south", "", "ε 1.5"],
    ]
    columns = ["number", "time", "who", "what", "about", "decision", "left"]
    head, first, *below, last = printed_table(80, "", columns, rows).splitlines()
    assert [line.index(word) for line, word in ((head, "left"), (first, "ε 1"), (last, "ε 1.5"))] == [69] * 3
    assert " ".join(line.strip() for line in below) == f"decision: {reason.strip()}"


def test_audit_verdicts_are_whole_at_80_columns() -> None:
    rows = [
        _finding_row(finding) for finding in audit_all(cases_of(["laplace"]), runs=100, seed=1, false_alarm=0.01)
    ]
    text = printed_table(80, "audit", list(COLUMNS), rows)
    for word in " ".join(cell for row in rows for cell in row).split():
        assert word in text
