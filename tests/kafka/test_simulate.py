"""``sotto simulate`` asks a deployment's ledger which tables are private."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.settings import Settings
from tests.builders import source, stream
from tests.conftest import StartService
from tests.preloaded import command

pytestmark = pytest.mark.kafka

STREAM = stream("ages", "people", "histogram", mechanism={"attributes": ["age"]})


def simulate(settings: Settings, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The command gets Kafka's address, but not the folders that the services may read.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("SOTTO_")}
    (folder / "questions.txt").write_text("age < 30\n")
    here = {"SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix}
    asked = ["simulate", json.dumps(STREAM), str(folder / "questions.txt"), *arguments]
    return command(asked, {**environment, **here})


async def test_simulate_refuses_registered_tables_under_any_definition(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    private, public, link = (tmp_path / f"{name}.csv" for name in ("private", "public", "link"))
    private.write_text("age\n" + "20\n" * 40)
    shutil.copy(private, public)
    link.symlink_to(private)
    people = source("people", "table", epsilon=2.0, path=str(private), attributes={"age": 100})
    start("budget")
    await client.register(people)
    await client.register({**people, "source": "others"})
    assert {one.source.source for one in await client.list_sources()} == {"people", "others"}

    other = json.dumps({**people, "path": str(public)})
    for arguments in (
        [],
        ["--table", str(private)],
        ["--table", str(link)],
        ["--source", other, "--table", str(link)],
    ):
        refused = simulate(settings, tmp_path, *arguments)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "private" in refused.stderr

    # The definition comes from the ledger, and the rows from another file.
    for arguments, rows in ((["--table", str(public)], 40), (["--synthetic", "70"], 70)):
        made = simulate(settings, tmp_path, *arguments, "--json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["rows"] == rows
