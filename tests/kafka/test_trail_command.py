"""``sotto ledger trail`` against real Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.settings import Settings
from tests.builders import source
from tests.commands import run_in, run_installed
from tests.conftest import StartService

pytestmark = pytest.mark.kafka


async def test_trail_command_refuses_unregistered_source_without_file(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    start("budget")
    await client.register(source("vitals", epsilon=1.0))
    shown = run_installed(settings, "ledger", "trail", "--source", "vitals", "--json")
    assert [entry["source"] for entry in json.loads(shown.stdout)] == ["vitals"], shown.stderr
    export = tmp_path / "trail.csv"
    for further in ((), ("--json",), ("--export", str(export))):
        refused = run_installed(settings, "ledger", "trail", "--source", "vitls", *further)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "error: source 'vitls' is not registered; did you mean 'vitals'?\n"
    assert not export.exists()
    nothing = run_installed(settings, "ledger", "trail", "--source", "vitals", "--analyst", "vera", "--json")
    assert json.loads(nothing.stdout) == []


async def test_trail_command_reads_the_latest_entries_from_the_end(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    """Offsets of transaction markers between entries do not count as entries."""
    start("budget")
    for name in ("first", "second", "third", "fourth"):
        await client.register(source(name, epsilon=1.0))
    address = {"SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix, "SOTTO_BATCH_EVENTS": "3"}
    for wanted, names in (("--last", "2"), ["third", "fourth"]), (("--source", "second"), ["second"]):
        shown = run_in("ledger", "trail", "--json", *wanted, environment=address)
        assert [entry["source"] for entry in json.loads(shown.stdout)] == names, shown.stderr
