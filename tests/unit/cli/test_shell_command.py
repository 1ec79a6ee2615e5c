"""``sotto shell``: statements are answered in turn, prices are confirmed, names and values are completed."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from schemas import Source
from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import shell_command
from stream.cli.manage.shell_command import Catalog, ShellSession
from tests.builders import installation, source, stream
from tests.commands import Connected
from tests.unit.sql.test_asking import append_refusal

PEOPLE = source(
    "people",
    "table",
    epsilon=100,
    path="people.parquet",
    attributes={
        "age": {"kind": "integers", "minimum": 0, "maximum": 99},
        "sex": ["F", "M"],
        "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-12-31"},
    },
)
ROWS = {"age": [40] * 400, "sex": ["F", "M"] * 200, "day": ["2024-03-31"] * 400}


@pytest.fixture
def connected_driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return an installation with two streams, to which the shell is connected."""
    driver = installation(sources=[PEOPLE], rows={"people": ROWS})
    driver.open(stream("many", "people", "laplace", epsilon=40.0, mechanism={"answers": 20}))
    driver.open(stream("few", "people", "laplace", epsilon=8.0, mechanism={"answers": 2}))
    monkeypatch.setattr(shell_command, "AsyncClient", lambda: Connected(driver))
    return driver


def run_shell(text: str, *options: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["shell", *options], input=text, catch_exceptions=False)
    assert result.exit_code == status
    return result.output


def test_shell_answers_statements_in_turn_and_survives_errors(connected_driver: Driver) -> None:
    """An error is printed and gives status 1; the next statement is answered; a statement may take several lines."""
    output = run_shell(
        "SELECT nothing FROM many;\nSELECT COUNT(*) AS n\nFROM many;\n\\quit\nSELECT COUNT(*) FROM many;\n",
        status=1,
    )
    assert "error: " in output
    assert "Traceback" not in output
    assert "the answers cost at most ε 2 together" in output
    assert connected_driver.grant("people", "many").answered == 1


def test_shell_warns_of_the_same_thing_once(connected_driver: Driver) -> None:
    """What holds for each question of a stream is printed once; a number that is not informative is always marked."""
    shown = run_shell("SELECT AVG(age) FROM many;\nSELECT AVG(age) FROM many WHERE sex = 'F';\n")
    assert shown.count("count as its ends") == 1
    assert connected_driver.grant("people", "many").answered == 2
    shown = run_shell("SELECT COUNT(*) FROM many WHERE age < 9;\n" * 2)
    assert shown.count("warning: not informative") == 2
    shown = run_shell("SELECT COUNT(*) FROM many;\nSELECT COUNT(*) FROM few;\n", "--yes")
    assert shown.count("warning: rows with a missing or invalid cell are left out") == 2


@pytest.mark.usefixtures("connected_driver")
def test_sql_prints_a_quantile_of_dates() -> None:
    """A median of dates is a text with texts as the ends of its interval, without a ±."""
    result = CliRunner().invoke(app, ["sql", "SELECT MEDIAN(day) FROM many"], catch_exceptions=False)
    assert "2024-03-31 to 2024-03-31" in result.stdout
    assert "±" not in result.stdout


def test_shell_takes_comments_in_a_pipe(connected_driver: Driver) -> None:
    """A comment ends with its line, and is no statement that fails."""
    run_shell("-- two\nSELECT COUNT(*) -- all\nFROM many;\nSELECT COUNT(*) FROM many;\n-- done\n")
    assert connected_driver.grant("people", "many").answered == 2


def test_shell_skips_a_dear_statement_in_a_pipe_without_yes(connected_driver: Driver) -> None:
    """Half of a grant is charged only with --yes; \\price never charges."""
    statement = "SELECT COUNT(*) FROM few;\n"
    assert "is skipped for its price" in run_shell(statement, status=1)
    assert "nothing was charged" in run_shell(f"\\price {statement}", "--yes")
    assert connected_driver.grant("people", "few").answered == 0
    run_shell(statement, "--yes")
    assert connected_driver.grant("people", "few").answered == 1


@pytest.mark.parametrize(("reply", "answered"), [("n", 0), (KeyboardInterrupt, 0), (EOFError, 0), ("y", 1)])
async def test_shell_at_a_terminal_asks_only_if_confirmed(
    connected_driver: Driver, monkeypatch: pytest.MonkeyPatch, reply: Any, answered: int
) -> None:
    """Ctrl-C and Ctrl-D at the confirmation refuse it, and the shell continues."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(
        shell_command, "_create_prompt", lambda: SimpleNamespace(prompt_async=AsyncMock(side_effect=[reply]))
    )
    client: Any = Connected(connected_driver)
    session = ShellSession(client, Catalog([], []), confirms=True)
    assert await session.run("SELECT COUNT(*) FROM few")
    assert connected_driver.grant("people", "few").answered == answered
    assert not session.has_failed


async def test_shell_asks_the_stream_whose_price_was_confirmed(
    connected_driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream may be the choice by then, at another price."""

    async def reply(_: str) -> str:
        append_refusal(connected_driver, "people", "few")
        assert connected_driver.sql("SELECT COUNT(*) FROM people", max_price=0).stream == "many"
        return "y"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(shell_command, "_create_prompt", lambda: SimpleNamespace(prompt_async=reply))
    client: Any = Connected(connected_driver)
    assert await ShellSession(client, Catalog([], []), confirms=True).run("SELECT COUNT(*) FROM people")
    assert [connected_driver.grant("people", name).answered for name in ("few", "many")] == [1, 0]


@pytest.mark.parametrize(
    ("calls", "words"), [(0, "nothing was charged"), (1, "answered and charged: 'sotto answers")]
)
async def test_ctrl_c_says_what_the_questions_cost(
    connected_driver: Driver, capsys: pytest.CaptureFixture[str], calls: int, words: str
) -> None:
    """Nothing is charged until the price is shown; after that, the questions may be in Kafka."""
    priced = connected_driver.sql("SELECT COUNT(*) FROM many", outcomes=True, max_price=0.0)
    client: Any = SimpleNamespace(sql=AsyncMock(side_effect=[*[priced][:calls], asyncio.CancelledError]))
    with pytest.raises(asyncio.CancelledError):
        await ShellSession(client, Catalog([], []), confirms=False).run("SELECT COUNT(*) FROM many")
    assert (
        f"interrupted: {'the questions may have been sent and are then ' * calls}{words}"
        in capsys.readouterr().err
    )


def test_shell_prices_and_asks_a_histogram(connected_driver: Driver) -> None:
    """Its first answer costs the grant, which is confirmed; later answers are free."""
    priced = run_shell("\\price SELECT COUNT(*) FROM people;\n")
    assert "few: the answers cost at most ε 4 together (cheapest of the accurate open streams: " in " ".join(
        priced.split()
    )
    connected_driver.open(stream("bars", "people", "histogram", epsilon=2.0, mechanism={"attributes": ["sex"]}))
    shown = run_shell("\\price SELECT COUNT(*) FROM bars;\n" + "SELECT COUNT(*) FROM bars;\n" * 2, "--yes")
    assert shown.count("bars: the answers cost at most ε 2 together") == 2
    assert "error" not in shown
    assert shown.count("1 question for ε = ") == 2


def test_shell_takes_help_and_exit_without_a_backslash(connected_driver: Driver) -> None:
    """Such a word alone is no statement, so the shell does not wait for a semicolon."""
    shown = run_shell("help\nSELECT COUNT(*)\nFROM many;\nExit;\nSELECT COUNT(*) FROM many;\n")
    assert "its price is shown first\n\\price SELECT" in shown
    assert "error" not in shown
    assert connected_driver.grant("people", "many").answered == 1


async def test_shell_lists_what_is_open_now(
    connected_driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others may close, open and register while the shell runs; completion knows what the last list has shown."""
    client: Any = Connected(connected_driver)
    catalog = await Catalog.fetch(client)
    session = ShellSession(client, catalog, confirms=True)
    connected_driver.close("people", "few")
    connected_driver.register({**PEOPLE, "source": "wards"}, ROWS)
    connected_driver.open(stream("new", "wards", "laplace", epsilon=4.0, mechanism={"answers": 2}))
    for command in ("\\streams", "\\describe wards"):
        assert await session.run(command)
    shown = capsys.readouterr().out
    assert "new" in shown
    assert "few" not in shown
    assert "integers" in shown
    assert catalog.complete("SELECT COUNT(*) FROM ne") == [("new", 2)]
    monkeypatch.setattr(shell_command, "MAX_STREAMS", 2)
    assert await session.run("\\streams")
    assert "open streams among the first 2" in " ".join(capsys.readouterr().out.split())


def test_shell_lists_sources_streams_and_attributes(connected_driver: Driver) -> None:
    output = run_shell(
        "\\sources\n\\streams people\n\\describe people\n\\describe nobody\n\\other\n\\help\n", status=1
    )
    assert connected_driver.topics.prefix
    for words in (
        "table",
        "open streams",
        "integers",
        "'nobody' has no declared",
        "'\\other' is not known",
        "\\quit",
    ):
        assert words in output


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT COUNT(*) FROM pe", [("people", 2)]),
        ("SELECT COUNT(*) FROM many WHERE a", [("age", 1), ("AVG(", 1), ("AND", 1)]),
        ("SELECT COUNT(*) FROM many WHERE sex = '", [("F'", 0), ("M'", 0)]),
        ("SELECT COUNT(*) FROM many WHERE sex IN ('F', '", [("F'", 0), ("M'", 0)]),
        ("\\streams ", [("people", 0), ("many", 0)]),
        ("SELECT ", []),
    ],
)
def test_catalog_completes_names_and_values(text: str, found: list[tuple[str, int]]) -> None:
    """Attributes and values are those of the source that FROM names, directly or by a stream."""
    catalog = Catalog([TypeAdapter(Source).validate_python(PEOPLE)], [("many", "people")])
    assert catalog.complete(text) == found
