"""``sotto sql`` and ``sotto ask`` about a table, against real Kafka."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.cli.manage.query_commands import ExitStatus
from stream.formatting import ROWS_LEFT_OUT
from stream.settings import Settings
from tests.builders import source, stream
from tests.commands import run_installed
from tests.conftest import StartService

pytestmark = pytest.mark.kafka


def sql(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_installed(settings, "sql", *arguments)


async def test_sql_command_prints_errors_and_cost(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,sex\n" + "30,F\n" * 300 + "40,M\n" * 100)
    start("budget")
    start("worker")
    await client.register(source("people", "table", epsilon=100.0, path=str(path)))
    await client.open(stream("few", "people", "laplace", mechanism={"answers": 3}, epsilon=60.0))

    counted = sql(settings, "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex ORDER BY n", "--json")
    assert counted.returncode == 0, counted.stderr
    answer = json.loads(counted.stdout)
    assert (answer["stream"], answer["epsilon"]) == ("few", pytest.approx(20.0))
    assert [row["sex"] for row in answer["rows"]] == ["M", "F"]
    for row, truth in zip(answer["rows"], (100, 300), strict=True):
        assert abs(row["n"] - truth) <= row["n ±"] < 5

    refused = sql(settings, "SELECT MAX(age) FROM people")
    assert refused.returncode == ExitStatus.REJECTED
    assert "ask QUANTILE" in refused.stderr

    for wrong in (
        "SELECT AVG(height) FROM people",
        "SELECT COUNT(*) FROM people WHERE sex = 'X'",
        "SELECT COUNT(*) FROM nobody",
    ):
        refused = sql(settings, wrong)
        assert (refused.returncode, refused.stdout) == (ExitStatus.REJECTED, ""), refused.stderr

    beyond = sql(settings, "SELECT AVG(age) AS a, SUM(age) AS s, COUNT(*) AS n FROM few")
    assert (beyond.returncode, beyond.stdout) == (ExitStatus.REJECTED, "")
    assert "asks 3 questions, and the grant of stream 'few' pays for 2 more" in beyond.stderr

    rest = sql(settings, "SELECT AVG(age) AS a, SUM(age) AS s FROM few")
    assert rest.returncode == 0, rest.stderr
    assert "±" in rest.stdout


async def test_ask_command_names_groups_and_warns_of_constants(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,sex\n" + "30,F\n" * 300 + "40,M\n" * 100)
    start("budget")
    start("worker")
    await client.register(source("people", "table", epsilon=100.0, path=str(path)))
    mechanism = {"kind": "laplace", "answers": 20}
    await client.open(stream("few", "people", mechanism=mechanism, epsilon=60.0))

    table = run_installed(settings, "ask", "few", "--group-by", "sex")
    left_out = f"warning: {ROWS_LEFT_OUT}\n"
    assert (table.returncode, table.stderr) == (0, left_out)
    cells = [line.replace("│", " ").split() for line in table.stdout.splitlines()]
    counts = {cell[0]: float(cell[1]) for cell in cells if cell and cell[0] in {"F", "M"}}
    assert counts == {"F": pytest.approx(300, abs=20), "M": pytest.approx(100, abs=20)}

    beyond = run_installed(settings, "ask", "few", "--group-by", "sex", "--where", "age > 200", "--json")
    assert beyond.returncode == 0
    warning = "warning: where: age > 200 holds for no row; 'age' is declared as whole numbers from 0 to 99, and values outside count as 0 or 99\n"
    answer = json.loads(beyond.stdout)
    assert answer["groups"] == [{"sex": "F"}, {"sex": "M"}]
    # The noise decides whether a number is marked as not informative.
    marked = "warning: not informative: " if "uninformative" in answer else ""
    assert beyond.stderr.startswith(warning + left_out + marked)
    assert ("not informative" in beyond.stderr) == bool(marked)

    stated = run_installed(settings, "sql", "SELECT COUNT(*) AS n FROM people WHERE age <= 100")
    assert (stated.returncode, stated.stderr) == (
        0,
        warning.replace("> 200 holds for no", "<= 100 holds for every")
        + "warning: 'age': 99 also counts all higher values\n"
        + left_out,
    )
    inside = run_installed(settings, "ask", "few", "--where", "age > 20")
    assert (inside.returncode, inside.stderr) == (0, left_out)

    # A client that has read the ledger also knows a stream that was opened later.
    async with AsyncClient(settings) as other:
        assert (await other.ask("few", where="age > 200")).warnings
        release = {"kind": "histogram", "attributes": ["age"]}
        await client.open(stream("later", "people", mechanism=release, epsilon=30.0, expected_queries=1))
        first, second = [(await other.ask("later", where="age > 200")).warnings for _ in range(2)]
        assert first
        assert len(second) == len(first) + 1
        assert second[0].startswith("more than the 1 answer for which α is promised: ")
