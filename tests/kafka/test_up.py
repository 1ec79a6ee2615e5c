"""``sotto up`` runs once in a folder, hides its files from other users, ends with its broker, and has exit statuses for scripts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from stream.kafka.broker_addresses import free_port
from stream.kafka.local_broker import LocalBroker
from tests.builders import stream
from tests.commands import run_in
from tests.kafka.wards import VITALS

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

STREAM = stream("ward-7", "vitals", beta=1e-6, mechanism={"threshold": 1000.0, "cutoff": 3})
PATIENCE = 120.0


class Up:
    """A running ``sotto up``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        assert "SOTTO_BOOTSTRAP=" in self.line, self.line + str(process.stderr and process.stderr.read())
        self.bootstrap = self.line.split("SOTTO_BOOTSTRAP=")[1].split(",")[0]
        page = process.stdout.readline()
        assert "The monitor's page is" in page, page
        self.environment = {"SOTTO_BOOTSTRAP": self.bootstrap, "COLUMNS": "200"}

    def wait_for_end(self) -> tuple[int, str]:
        """Return its exit status and its standard error."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def up(folder: Path, **environment: str) -> Iterator[Up]:
    with subprocess.Popen(
        [sys.executable, "-m", "sotto", "up", "--folder", str(folder), "--port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
    ) as process:
        try:
            yield Up(process)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def files_open_to_others(folder: Path) -> list[str]:
    """Return the files of the folder that other users could open."""
    found = []
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(path, name).stat().st_mode & 0o077]
        found += [str(Path(path, name)) for name in files if Path(path, name).stat().st_mode & 0o077]
    return found


def three_ports() -> int:
    """Return a free port whose next two ports are also free."""
    while True:
        first = free_port()
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def test_up_runs_once_in_folder_and_leaves_it_usable(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    folder.mkdir()  # like a folder that a person makes, it can be read by others
    with up(folder) as first:
        second = run_in("up", "--folder", str(folder), environment={})
        assert second.returncode == 1
        assert f"process {first.process.pid}" in second.stderr
        assert f"SOTTO_BOOTSTRAP={first.bootstrap}" in second.stderr
        broker = LocalBroker(folder / "broker").status()
        assert broker is not None
        assert broker.bootstrap == first.bootstrap
        allowed = {"broker.lock", "broker.json", "log4j2.properties"}
        assert [path for path in files_open_to_others(folder) if Path(path).name not in allowed] == []

        assert run_in("source", "add", json.dumps(VITALS), environment=first.environment).returncode == 0
        one = {**STREAM, "mechanism": {**STREAM["mechanism"], "cutoff": 1}}
        assert run_in("stream", "open", json.dumps(one), environment=first.environment).returncode == 0

        def ask(stream: str, value: str, *more: str) -> int:
            return run_in("ask", stream, "--value", value, *more, environment=first.environment).returncode

        assert ask("ward-7", "12") == 0
        assert ask("nobody", "12") == 3
        assert ask("ward-7", "5000") == 0
        assert ask("ward-7", "5000") == 5
        other = {**STREAM, "stream": "ward-8"}
        assert run_in("stream", "open", json.dumps(other), environment=first.environment).returncode == 0
        assert run_in("stream", "halt", "vitals", "ward-8", environment=first.environment).returncode == 0
        deadline = time.monotonic() + PATIENCE
        while (status := ask("ward-8", "12")) != 4:  # the worker learns of the stream a moment later
            assert status == 0
            assert time.monotonic() < deadline
        assert ask("ward-7", "12", "--timeout", "0.001") in {1, 6}  # not sent, or not answered in time
        assert ask("ward-7", "nan") == 1

        os.kill(broker.pid, signal.SIGKILL)
        status, said = first.wait_for_end()
        assert status == 1
        assert "the broker ended" in said
    # The files that it left do not prevent another start.
    with up(folder) as third:
        assert run_in("source", "show", "vitals", environment=third.environment).returncode == 0
        before = LocalBroker(folder / "broker").status()
        third.process.kill()
        third.process.wait()
        with up(folder) as fourth:
            after = LocalBroker(folder / "broker").status()
            assert before is not None
            assert after is not None
            assert before.pid != after.pid
            added = {**VITALS, "source": "more"}
            assert run_in("source", "add", json.dumps(added), environment=fourth.environment).returncode == 0


def test_up_uses_running_broker_and_gives_each_service_a_metrics_port(
    tmp_path: Path,
) -> None:
    first = three_ports()
    with LocalBroker(tmp_path / "broker", heap_megabytes=256) as broker:
        running = broker.status()
        with up(tmp_path, SOTTO_METRICS_PORT=str(first)) as one:
            assert running is not None
            assert one.bootstrap == running.bootstrap
            assert "but the broker, which ran before" in one.line
            metrics = [
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read()
                for port in range(first, first + 3)
            ]
        assert broker.status() == running
    assert broker.status() is None
    for role, figures in zip(("budget", "feed", "worker"), metrics, strict=True):
        assert f"sotto_{role}_ready".encode() in figures
