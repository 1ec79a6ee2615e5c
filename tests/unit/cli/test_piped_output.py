"""Commands print one unbroken line for each record into a pipe or file."""

from __future__ import annotations

import io

import pytest

from stream.cli import output
from stream.cli.manage.query_commands import show_answer
from stream.cli.output import show_table
from stream.questions import Result

REASON = f"{'the budget of this source is used up; ' * 8}ask another"
ROW = ["s" * 90, REASON, "ε 1.0"]


class Terminal(io.StringIO):
    """An output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_record_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    numbers = tuple(range(10_000))
    show_answer(Result(id="q" * 60, stream="s", outcome="rejected", reason=REASON), as_json=False)
    show_answer(Result(id="q", stream="s", outcome="answer", index=0, estimates=numbers), as_json=False)
    rejected, answered = capsys.readouterr().out.splitlines()
    assert rejected.endswith(f"rejected: {REASON}")
    assert answered.endswith("9998, 9999")


def test_table_row_is_one_line_in_a_pipe_without_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If COLUMNS is set, lines have at most this width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    show_table("streams", ["stream", "reason", "cost"], [ROW, ["s", "none", "ε 2.0"]])
    title, head, row, short = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("streams", ["stream", "reason", "cost"])
    assert all(cell in row for cell in ROW)
    assert len(short) < 60  # a long cell does not widen the other rows
    monkeypatch.setenv("COLUMNS", "100")
    show_table("streams", ["stream", "reason", "cost"], [ROW])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_terminal_lines_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert 40 < max(map(len, printed_reason(monkeypatch).splitlines())) <= 60
    assert " ".join(line.strip() for line in printed_reason(monkeypatch).splitlines()) == REASON
    assert printed_reason(monkeypatch, soft_wrap=True) == f"{REASON}\n"


def printed_reason(monkeypatch: pytest.MonkeyPatch, *, soft_wrap: bool = False) -> str:
    """Return the output that a terminal receives."""
    terminal = Terminal()
    monkeypatch.setattr(output, "console", type(output.console)(file=terminal))
    output.say(REASON, soft_wrap=soft_wrap)
    return terminal.getvalue()
