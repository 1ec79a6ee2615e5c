"""The command line and the demo against real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from stream.kafka.broker_addresses import free_port
from tests.builders import stream
from tests.commands import run_in
from tests.kafka.wards import VITALS

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

STREAM = stream("ward-7", "vitals", beta=1e-6, mechanism={"threshold": 1000.0, "cutoff": 3})


def test_demo_keeps_every_claim_and_its_page(bootstrap: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sotto",
            "demo",
            "--json",
            "--stay",
            "--folder",
            str(tmp_path),
            "--port",
            str(free_port()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SOTTO_BOOTSTRAP": bootstrap},
    ) as running:
        watchdog = threading.Timer(480, running.kill)
        watchdog.start()
        try:
            assert running.stderr is not None
            lines = []
            for line in running.stderr:
                lines.append(line)
                if "Ctrl-C" in line:
                    break
            assert lines, "the demo says nothing"
            page = lines[-1].split("page is ")[1].split(";")[0]
            with urlopen(page + "healthz") as health:  # noqa: S310
                assert health.status == 200
            running.send_signal(signal.SIGINT)
            shown, _ = running.communicate(timeout=60)
        finally:
            watchdog.cancel()
            running.kill()
    assert running.returncode == 0, shown + "".join(lines)
    report = json.loads(shown)
    assert report["held"]
    assert report["queries_asked"] == report["queries_answered"] >= 20_000
    assert all(check["held"] for check in report["checks"])
    assert report["streams_halted"] > 0
    assert not list(tmp_path.glob("*.key"))


def test_live_demo_asks_year_of_windows_once_and_finds_worst(bootstrap: str, tmp_path: Path) -> None:
    """The claims hold; the promised α may fail in 5 % of the runs, but not in two runs one after the other."""
    for number in range(2):
        done = run_in(
            *("demo", "live", "--json", "--folder", str(tmp_path / str(number)), "--port", str(free_port())),
            environment={"SOTTO_BOOTSTRAP": bootstrap},
            timeout=480,
        )
        report = json.loads(done.stdout)
        broken = [check["claim"] for check in report["checks"] if not check["held"]]
        if broken != ["above and below are right within the promised α"]:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert report["held"]
    assert broken == []
    assert report["departures"] == 336_776
    assert report["late"] > report["left_out"] > 0
    alerts = [one["aircraft"] for one in report["windows"] if one["alert"]]
    # The promised α is 38. That all alerts lie below half of the worst value is far less likely than a failure of this promise.
    assert max(alerts) > 70


def test_up_serves_the_readme_and_leaves_no_process(tmp_path: Path) -> None:
    installation = tmp_path / ".sotto"
    port = free_port()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sotto",
            "up",
            "--folder",
            str(installation),
            "--broker-port",
            str(port),
            "--port",
            str(free_port()),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            bootstrap = line.split("SOTTO_BOOTSTRAP=")[1].split(",")[0]
            assert bootstrap == f"127.0.0.1:{port}"
            page = running.stdout.readline()
            with urlopen(page.split("page is ")[1].split(";")[0] + "healthz") as health:  # noqa: S310
                assert health.status == 200
            tokens = [file.read_text().strip() for file in installation.glob("monitor-*.token")]
            assert len(tokens) == 2
            assert not any(token in page for token in tokens)
            environment = {"SOTTO_BOOTSTRAP": bootstrap, "COLUMNS": "200"}
            assert run_in("source", "add", json.dumps(VITALS), environment=environment).returncode == 0
            opened = run_in("stream", "open", json.dumps(STREAM), environment=environment)
            assert "is open at ε 1" in opened.stdout
            low = run_in("ask", "ward-7", "--value", "12", "--json", environment=environment)
            assert json.loads(low.stdout)["outcome"] == "below"
            high = run_in("ask", "ward-7", "--value", "5000", environment=environment)
            assert " above" in high.stdout
            seen = run_in("answers", "--from-beginning", "--limit", "2", "--json", environment=environment)
            assert [json.loads(line)["outcome"] for line in seen.stdout.splitlines()] == ["below", "above"]
            refused = run_in(
                "stream",
                "open",
                json.dumps({**STREAM, "stream": "ward-8", "epsilon": 3.5}),
                environment=environment,
            )
            assert refused.returncode == 1
            assert "ε = 3.5 asked, ε = 3 left" in refused.stderr
            extend = ("stream", "extend", "vitals", "ward-7", "--epsilon", "0.5")
            extended = run_in(*extend, environment=environment)
            assert "stream ward-7: 2 more charged answers for ε 0.4" in extended.stdout
            assert "5 in all" in extended.stdout
            last = run_in("ask", "ward-7", "--value", "12", "--json", environment=environment)
            assert json.loads(last.stdout)["tops_left"] == 4
            poor = run_in(*extend[:-1], "100", environment=environment)
            assert poor.returncode == 1
            assert "source 'vitals' cannot pay: ε = " in poor.stderr
            _check_lookup_of_names(environment)
            assert run_in("stream", "close", "ward-7", environment=environment).returncode == 0
            budget = _wait_for_refund(environment)
            assert budget["source"]["refunded"]["epsilon"] > 0
            shown = run_in("stream", "show", "vitals", "ward-7", environment=environment)
            assert "closed" in shown.stdout
            assert "1 / 5" in shown.stdout
            _check_lists_from_subfolder(environment, tmp_path)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    assert str(tmp_path) not in listed


def _check_lookup_of_names(environment: dict[str, str]) -> None:
    unknown = run_in("stream", "close", "ward-9", environment=environment)
    assert "error: stream 'ward-9': is not known" in unknown.stderr
    planned = run_in("plan", "--source", "vitals", "--epsilon", "1", environment=environment)
    assert planned.returncode == 0, planned.stderr


def _check_lists_from_subfolder(environment: dict[str, str], folder: Path) -> None:
    listed = run_in("source", "list", "--json", environment=environment)
    assert [one["source"]["source"] for one in json.loads(listed.stdout)] == ["vitals"]
    assert "vitals" in run_in("source", "list", environment=environment).stdout
    listed = run_in("stream", "list", "--json", environment=environment)
    assert [one["spec"]["stream"] for one in json.loads(listed.stdout)] == ["ward-7"]
    shown = run_in("stream", "list", "vitals", environment=environment)
    [row] = [line for line in shown.stdout.splitlines() if "ward-7" in line]
    assert "above_threshold" in row
    below = folder / "reports"
    below.mkdir()
    assert "vitals" in run_in("source", "list", environment={}, folder=below).stdout
    top = run_in("top", "--once", environment={}, folder=below)
    assert "ward-7" in top.stdout, top.stderr
    unknown = run_in("stream", "list", "nobody", environment=environment)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'nobody' is not registered" in unknown.stderr


def _wait_for_refund(environment: dict[str, str]) -> dict[str, dict[str, dict[str, float]]]:
    deadline = time.monotonic() + 120
    while True:
        shown = run_in("source", "show", "vitals", "--json", environment=environment)
        budget: dict[str, dict[str, dict[str, float]]] = json.loads(shown.stdout)
        if budget["source"]["refunded"]["epsilon"] or time.monotonic() > deadline:
            return budget
