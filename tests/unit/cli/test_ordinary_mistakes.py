"""Ordinary mistakes at the command line: one line that names the wrong part and the remedy, and no traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import query_commands, shell_command
from stream.cli.output import CommandError
from stream.formatting import ROWS_LEFT_OUT
from stream.monitor.api.tokens import TokenError
from stream.secret_files import SecretFileError
from tests.builders import installation, source, stream
from tests.commands import Connected, run_sotto

AGE = {"age": {"kind": "integers", "minimum": 0, "maximum": 99}}
TABLE = '{"source": "p", "kind": "table", "neighbors": "add-remove", "epsilon": 1, "path": "%s", "attributes": {"age": ["1"]}}'


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with files of ordinary faults."""
    monkeypatch.chdir(tmp_path)
    Path("empty.json").touch()
    Path("folder").mkdir()
    Path("utf16.json").write_bytes("{}".encode("utf-16"))
    Path("semicolons.csv").write_text("age;sex\n3;F\n")
    Path("header.csv").write_text("age\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["source", "check", "empty.json"], "empty.json: is empty; give one JSON document"),
        (["source", "check", "folder"], "cannot read folder: Is a directory; give a file, '-' or inline JSON"),
        (["source", "check", "nowhere.json"], "cannot read nowhere.json: No such file or directory; give a file"),
        (["source", "check", "utf16.json"], "utf16.json: is not UTF-8 text; save it as UTF-8"),
        (["source", "check", '{"kind": "tabel"}'], "document: kind: did you mean 'table'? give one of "),
        (["source", "check", '{"a": 1, "a": 2}'], "document: a field is given twice; give each field once"),
        (["source", "check", TABLE.replace('"1"', "1") % "t.csv"], "document: attributes.age"),
        (["source", "check", TABLE % "nowhere.csv"], "table: nowhere.csv cannot be read: missing; give "),
        (["source", "propose", "nowhere.csv"], "table: nowhere.csv cannot be read: missing; give "),
        (["ask", "s", "--value", "nan"], "--value: is not a finite number; give one"),
        (["ask", "s", "--where", ""], "--where: is too short; give 1 or more characters"),
        (["ask", "s", "--where", "a = 1", "--alpha", "-1"], "--alpha: -1.0 is too small; give a number above 0"),
        (["ask", "s"], "no question: give --value"),
        (["ledger", "verify", "nowhere.backup"], "cannot read nowhere.backup: No such file or directory; give a readable"),
        (["key", "new", "empty.json"], "noise key: empty.json exists already, and a secret is never overwritten"),
        (["serve", "worker", "--key-file", "folder"], "noise key: cannot read file folder (Is a directory); give a readable"),
        (
            ["token", "create", "olga", "--role", "operator", "--into", "x.token", "--file", "empty.json"],
            "empty.json is not a names file (wrong: document); restore your copy",
        ),
    ],
)  # fmt: skip
def test_mistake_has_one_line_with_remedy(arguments: list[str], message: str) -> None:
    """The command's error begins with the wrong part; ``app`` prints it and exits with status 1."""
    Path("empty.json").chmod(0o600)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CommandError | SecretFileError | TokenError | SystemExit | Exception)
    assert result.exit_code == 1
    assert str(result.exception).startswith(message), result.exception
    assert "table not read" not in result.output


def test_invalid_choice_begins_with_the_value_found() -> None:
    """The list of choices follows it."""
    result = CliRunner().invoke(app, ["plan", "--mechanism", "laplase", "--epsilon", "1"])
    assert result.exit_code == 2
    assert "Invalid value for '--mechanism': 'laplase' is not one of" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("value", "fault"),
    [("-1", "'-1' is too small; give at least 0.000001"), ("abc", "'abc' is not a number; give one, as 0.05")],
)
def test_invalid_option_has_its_value_and_the_remedy(value: str, fault: str) -> None:
    """The errors of options have Sotto's words, not pydantic's sentences; those of variables, too."""
    result = CliRunner().invoke(app, ["plan", "--mechanism", "laplace", "--epsilon", value])
    assert f"Invalid value for '--epsilon': {fault}" in " ".join(result.stderr.split())
    refused = run_sotto("source", "list", SOTTO_MONITOR_ASKS="maybe")
    assert refused.stderr == "error: SOTTO_MONITOR_ASKS: is not a truth value; give true or false\n"


def test_invalid_prefix_names_allowed_characters() -> None:
    """A setting's fault has the remedy in words, not the pattern."""
    result = run_sotto("source", "list", SOTTO_PREFIX="so tto")
    assert result.returncode == 1
    assert result.stderr == "error: SOTTO_PREFIX: give 1 to 64 letters, digits, dots, hyphens and underscores\n"


def test_propose_recognizes_another_separator() -> None:
    result = CliRunner().invoke(app, ["source", "propose", "semicolons.csv"])
    assert "whose name has semicolons: services read commas only" in result.stderr


def test_check_of_a_table_without_rows_says_so() -> None:
    result = CliRunner().invoke(app, ["source", "check", TABLE % "header.csv"])
    assert "the table has no rows; check that it is the right one" in result.stdout


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """An installation with one stream, to which the commands are connected."""
    people = source("people", "table", epsilon=9, path="p.csv", attributes=AGE)
    driver = installation(
        stream("report", "people", "laplace", epsilon=8, mechanism={"answers": 2}),
        sources=[people],
        rows={"people": {"age": [30] * 900}},
    )
    for module in (query_commands, shell_command):
        monkeypatch.setattr(module, "AsyncClient", lambda: Connected(driver))
    return driver


def test_ask_suggests_a_stream_of_a_similar_name(made: Driver) -> None:
    """A worker knows only its own partition's streams, so the command reads the ledger."""
    result = CliRunner().invoke(app, ["ask", "reprot", "--where", "age > 1"])
    assert result.exit_code == query_commands.ExitStatus.REJECTED
    assert "warning: stream 'reprot' does not exist; did you mean 'report'?\n" in result.stderr
    assert made.grant("people", "report").answered == 0


@pytest.mark.parametrize(("threshold", "is_warned"), [("1", True), ("800", False)])
def test_threshold_below_the_error_of_decisions_is_not_informative(
    made: Driver, threshold: str, is_warned: bool
) -> None:
    """The opening refuses such a threshold, but a question may replace it."""
    mechanism = {"threshold": 500, "cutoff": 3}
    made.open(stream("alarm", "people", "above_threshold", epsilon=1, mechanism=mechanism))
    result = CliRunner().invoke(app, ["ask", "alarm", "--where", "age > 1", "--threshold", threshold])
    assert ("not informative: the error may exceed the threshold" in result.stderr) == is_warned
    [answer] = made.ask_many([{"id": "a", "stream": "alarm", "where": "age > 1", "threshold": float(threshold)}])
    assert answer.informative != is_warned


@pytest.mark.usefixtures("made")
def test_ask_json_has_the_warnings_of_an_answer_alone() -> None:
    asked = ["ask", "report", "--json", "--where"]
    answered = json.loads(CliRunner().invoke(app, [*asked, "age >= 0"]).stdout)
    assert answered["warnings"][0].startswith("where: age >= 0 holds for every row")
    assert ROWS_LEFT_OUT in answered["warnings"]
    stated = CliRunner().invoke(app, ["sql", "--json", "SELECT COUNT(*) FROM report WHERE age >= 0"])
    assert json.loads(stated.stdout)["warnings"][1:] == answered["warnings"][1:]
    assert "warnings" not in json.loads(CliRunner().invoke(app, [*asked, "nothing > 1"]).stdout)


def test_ask_warns_of_a_category_that_is_not_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker answers it with a random category, so only the person who asks may learn of the mistake."""
    mood = stream("mood", "people", "randomized_response", mechanism={"categories": ["well", "ill"]})
    driver = installation(mood, sources=[source("people", "records")])
    monkeypatch.setattr(query_commands, "AsyncClient", lambda: Connected(driver))
    for category, words in (("il", "category: 'il' is not declared; did you mean 'ill'"), ("ill", "")):
        result = CliRunner().invoke(app, ["ask", "mood", "--category", category])
        assert result.exit_code == 0
        assert words in result.stderr
        assert bool(result.stderr) == bool(words)


def test_ask_warns_of_no_condition_that_was_refused(made: Driver) -> None:
    """A number that a worker cannot read holds for no row, but the refusal alone says what to do."""
    result = CliRunner().invoke(app, ["ask", "report", "--where", "age > 1e400"])
    assert re.search(r"a number is beyond 1e±30", " ".join(result.stdout.split()))
    assert result.stderr == ""
    assert made.grant("people", "report").answered == 0
