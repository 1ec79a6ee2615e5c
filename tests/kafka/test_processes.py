"""Several workers under one parent share the partitions; a killed worker is restarted, and none outlives the parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stream.cli.app import app
from stream.privacy.noise.keys import NoiseKey
from stream.services import processes
from stream.services.processes import ReplicaError, Replicas
from stream.settings import KEY_FILE_VARIABLE, KEY_VARIABLE, Settings, variable_of
from tests.chaos.loaded_installation import open_installation

PATIENCE = 180.0


class Parent:
    """``sotto serve worker --processes N``, with the log of this process and its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    async def until(self, event: str, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE
        while len(found := self.logged(event)) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            await asyncio.sleep(0.1)
        return found

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE)


@contextmanager
def parent(settings: Settings, key: NoiseKey, folder: Path, *, processes: int) -> Iterator[Parent]:
    key_file = folder / "workers.key"
    key.save(key_file)
    environment = {
        name: text for name, text in os.environ.items() if name not in {KEY_VARIABLE, KEY_FILE_VARIABLE}
    }
    environment |= {variable_of(name): getattr(settings, name) for name in ("bootstrap", "prefix", "table_roots")}
    log = folder / "workers.log"
    command = [sys.executable, "-m", "sotto", "serve", "worker", "--json-logs", "--key-file", str(key_file)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--processes", str(processes)], stderr=output, stdout=output, env=environment
        )
        try:
            yield Parent(process, log)
        finally:
            process.kill()
            process.wait()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; an ended process that was not waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := {pid for pid in pids if is_alive(pid)}:
        assert time.monotonic() < deadline, f"still there: {left}"
        await asyncio.sleep(0.1)


@pytest.mark.kafka
async def test_killed_worker_is_restarted_and_stop_reaches_all(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    async with open_installation(settings, key, tmp_path) as installation:
        installation.work_outstanding = settings.work_outstanding  # the parent's workers have the default
        installation.start("budget")
        await installation.open()
        with parent(settings, key, tmp_path, processes=2) as workers:
            pids = {line["pid"] for line in await workers.until("process started", 2)}
            await workers.until("joined", 2)
            await installation.ask(400)
            await installation.answered()
            os.kill(min(pids), signal.SIGKILL)
            installation.injected["SIGKILL worker under a parent"] += 1
            started = await workers.until("process started", 3)
            assert workers.logged("process ended")[0]["status"] == -signal.SIGKILL
            assert started[2]["process"] == next(one["process"] for one in started if one["pid"] == min(pids))
            await installation.ask(400)
            await installation.answered()
            # A worker that is ordered to stop before it has joined has nothing to leave, and logs nothing.
            await workers.until("joined", 3)
            workers.process.terminate()
            assert await workers.ended() == 0
            pids |= {line["pid"] for line in started}
            assert len(workers.logged("left")) == 2
            await wait_until_gone(pids)
        await installation.verified()


@pytest.mark.kafka
async def test_workers_end_with_killed_parent(settings: Settings, key: NoiseKey, tmp_path: Path) -> None:
    with parent(settings, key, tmp_path, processes=3) as workers:
        pids = {line["pid"] for line in await workers.until("process started", 3)}
        await workers.until("joined", 3)
        workers.process.kill()
        await wait_until_gone(pids)


async def test_replicas_that_fail_at_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RESTART_PAUSES", (0.1,))
    with pytest.raises(ReplicaError, match="failed 2 times at its start"):
        await Replicas(Settings(), "worker", 1, ["--no-such-option"]).run()


@pytest.mark.parametrize("role", ["budget", "monitor"])
def test_processes_option_is_for_workers_and_feeds_only(role: str) -> None:
    ended = CliRunner().invoke(app, ["serve", role, "--processes", "2"])
    assert ended.exit_code != 0
    assert "--processes: only workers and feeds" in str(ended.exception)


def test_processes_need_existing_metrics_ports(
    tmp_path: Path, key: NoiseKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.save(tmp_path / "noise.key")
    monkeypatch.setenv(variable_of("metrics_port"), "65535")
    ended = CliRunner().invoke(
        app, ["serve", "worker", "--processes", "2", "--key-file", str(tmp_path / "noise.key")]
    )
    assert str(ended.exception).startswith(
        "SOTTO_METRICS_PORT: 2 processes need the ports from 65535 on; give at most 65534"
    )
