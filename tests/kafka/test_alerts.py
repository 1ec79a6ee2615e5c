"""Alerts from a real broker reach real receivers at least once, with one key each and in order, despite kills and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiokafka import AIOKafkaProducer

from schemas import Answer, GrantRecord
from sotto import AsyncClient, Unknown
from stream.kafka.broker_addresses import free_port
from stream.processing.topic_names import partition_of
from stream.questions.alert_states import format_time
from stream.services.processes import Service
from stream.settings import Settings
from tests.builders import source
from tests.chaos.windows import YESTERDAY, live_source, standing_specs
from tests.conftest import StartService
from tests.kafka.wards import ward
from tests.names import FILE, make_names
from tests.unit.alerts.receiver import SECRET, Receiver

pytestmark = pytest.mark.kafka

FEED = source(neighbors="add-remove", epsilon=9.0)
HIGH, LOW = 1e9, -1e9
GROUPS = ("EWR", "JFK", "LGA")
PATIENCE = 180.0


class AlertsInstallation:
    """An installation with a file of targets, and the alerts service on it."""

    def __init__(self, settings: Settings, client: AsyncClient, folder: Path, stack: ExitStack) -> None:
        self.client = client
        self.settings = settings
        self.folder = folder
        self._stack = stack
        self._started = 0
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.secret = str(secret)

    def start(self, *targets: dict[str, Any]) -> Service:
        file = self.folder / f"alerts-{self._started}.json"
        file.write_text(json.dumps({"targets": targets, "page": "https://sotto.example.org/"}))
        file.chmod(0o600)
        own = self.settings.model_copy(update={"alerts_file": str(file)})
        log = self.folder / f"alerts-{self._started}.log"
        self._started += 1
        return self._stack.enter_context(Service("alerts", own, None, log))

    def webhook(self, receiver: Receiver, name: str = "oncall", **fields: Any) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "webhook",
            "url": receiver.url,
            "secret_files": [self.secret],
            "timeout": "1s",
            **fields,
        }

    async def wait_until_joined(self, service: Service, targets: int = 1) -> None:
        """Wait until the targets' groups have their positions, so that all later answers are delivered."""
        async with asyncio.timeout(PATIENCE):
            while service.log.read_text().count("group joined") < targets:
                assert service.exit_status is None, service.log.read_text()
                await asyncio.sleep(0.05)

    async def ask(self, stream: str, *values: float) -> list[Answer]:
        """Ask one question after another, as merging does."""
        questions = [{"stream": stream, "value": value} for value in values]
        return list(await self.client.ask_many(questions, timeout=PATIENCE))

    async def incarnation(self, stream: str) -> str:
        grant: GrantRecord = await self.client.grant("feed", stream)
        return grant.identity.incarnation


@pytest.fixture
async def installation(
    settings: Settings, client: AsyncClient, tmp_path: Path, start: StartService
) -> AsyncIterator[AlertsInstallation]:
    start("budget")
    start("worker")
    await client.register(FEED)
    for stream in ("late", "early"):
        await client.open(ward(stream, cutoff=50, threshold=0.0))
    with ExitStack() as stack:
        yield AlertsInstallation(settings, client, tmp_path, stack)


class WindowedAnswers:
    """Committed answers of a standing stream, written as its worker writes them."""

    def __init__(self, installation: AlertsInstallation, stream: str) -> None:
        self._installation = installation
        self._stream = stream
        self._index = 0

    async def write(self, hour: int, *above: str) -> None:
        topics = self._installation.client.topics
        producer = AIOKafkaProducer(
            bootstrap_servers=self._installation.settings.bootstrap, transactional_id=f"test-{uuid.uuid4().hex}"
        )
        await producer.start()
        try:
            async with producer.transaction():
                for group in GROUPS:
                    answer = {
                        "id": f"2013-01-01T{hour:02}:00:00Z/{group}",
                        "stream": self._stream,
                        "outcome": "above" if group in above else "below",
                        "index": self._index,
                        "tops_left": 40,
                        "window": {
                            "start": f"2013-01-01T{hour:02}:00:00Z",
                            "end": f"2013-01-01T{hour + 1:02}:00:00Z",
                        },
                        "group": {"origin": group},
                    }
                    self._index += 1
                    await producer.send(
                        topics.answers,
                        json.dumps(answer, separators=(",", ":")).encode(),
                        key=self._stream.encode(),
                        partition=partition_of(self._stream.encode(), topics.partitions),
                    )
        finally:
            await producer.stop()


async def test_alerts_are_delivered_in_order_through_kills_and_failures(
    installation: AlertsInstallation,
) -> None:
    async with Receiver() as receiver:
        # Of three requests, one fails, one hangs until the sender gives up, and one is accepted.
        receiver.behave = lambda number: [web.Response(), web.Response(status=500), None][number % 3]
        service = installation.start(installation.webhook(receiver))
        await installation.wait_until_joined(service)
        expected = []
        for kill in range(3):
            for stream in ("late", "early"):
                answers = await installation.ask(stream, LOW, HIGH, LOW, HIGH)
                assert [answer.outcome for answer in answers] == ["below", "above"] * 2
                key = await installation.incarnation(stream)
                expected += [f"{key}-{answer.index}" for answer in answers if answer.outcome == "above"]
            seen = len(receiver.requests)
            await receiver.until(lambda: len(receiver.requests) >= seen + 2, PATIENCE)  # noqa: B023
            if kill < 2:
                os.kill(service.pid, signal.SIGKILL)
                service = installation.start(installation.webhook(receiver))
        receiver.behave = lambda _: web.Response()
        await receiver.until(lambda: set(receiver.keys) == set(expected), PATIENCE)
        first = list(dict.fromkeys(receiver.keys))
        for stream in ("late", "early"):
            key = await installation.incarnation(stream)
            own = [one for one in expected if one.startswith(key)]
            assert [one for one in first if one.startswith(key)] == own
        bodies: dict[str, set[bytes]] = {}
        for request in receiver.requests:
            bodies.setdefault(request.key, set()).add(request.body)
            assert request.is_signed_with(SECRET)
        assert all(len(found) == 1 for found in bodies.values())
        # Accepted and committed alerts are not repeated.
        await asyncio.sleep(1.5)
        service.stop()
        taken = len(receiver.requests)
        service = installation.start(installation.webhook(receiver))
        await installation.ask("late", HIGH)
        await receiver.until(lambda: len(receiver.requests) > taken, PATIENCE)
        assert receiver.keys[taken:] == [f"{await installation.incarnation('late')}-12"]


async def test_dead_target_delays_no_other_and_gets_missed_alerts(installation: AlertsInstallation) -> None:
    async with Receiver() as alive:
        async with Receiver() as gone:
            port = gone.port
        targets = [installation.webhook(alive, "alive"), installation.webhook(gone, "gone", streams=["la*"])]
        service = installation.start(*targets)
        await installation.wait_until_joined(service, 2)
        await installation.ask("late", HIGH, HIGH)
        await installation.ask("early", HIGH)
        await alive.until(lambda: len(alive.requests) == 3, PATIENCE)
        os.kill(service.pid, signal.SIGKILL)
        async with Receiver(port=port) as back:
            installation.start(*targets)
            await back.until(lambda: len(back.requests) >= 2, PATIENCE)
            assert list(dict.fromkeys(back.keys)) == [
                f"{await installation.incarnation('late')}-{n}" for n in (0, 1)
            ]


async def test_alerts_have_the_warnings_of_their_windows(installation: AlertsInstallation) -> None:
    """The service learns a stream's definition from the ledger; the sum of a clamped attribute has a warning."""
    await installation.client.register(live_source("visits", "marks"))
    [spec] = [one for one in standing_specs("2h", "1h", YESTERDAY) if one.stream == "visits-sum"]
    await installation.client.open(spec)
    async with Receiver() as receiver:
        service = installation.start(installation.webhook(receiver))
        await installation.wait_until_joined(service)
        await WindowedAnswers(installation, "visits-sum").write(5, "EWR")
        await receiver.until(lambda: len(receiver.requests) == 1, PATIENCE)
        data = receiver.requests[0].json["data"]
    assert data["counted"] == "of each 'who.id' at most 2 events count in a window"
    assert "values of 'value' outside 0 to 9 count as its ends; no ± covers this" in data["warnings"]


async def test_alerts_have_windows_and_groups(installation: AlertsInstallation) -> None:
    async with Receiver() as receiver:
        service = installation.start(installation.webhook(receiver))
        await installation.wait_until_joined(service)
        await WindowedAnswers(installation, "late").write(5, "EWR", "LGA")
        await receiver.until(lambda: len(receiver.requests) == 2, PATIENCE)
        messages = [request.json["data"] for request in receiver.requests]
        assert [one["group"] for one in messages] == [{"origin": "EWR"}, {"origin": "LGA"}]
        assert messages[0]["window"] == {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"}
        assert messages[0]["source"] == "feed"
        assert messages[0]["page"] == "https://sotto.example.org/#/streams/late"


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """Run a real Alertmanager, and yield its address."""
    binary = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
    if binary is None:
        pytest.skip("no Alertmanager here; Debian has it as prometheus-alertmanager")
    port = free_port()
    configuration = tmp_path / "alertmanager.yml"
    configuration.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with (tmp_path / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={configuration}",
                f"--storage.path={tmp_path / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


async def firing_alerts(session: ClientSession, address: str) -> dict[str, Any]:
    """Return the alerts that fire according to Alertmanager, by their group."""
    with contextlib.suppress(OSError):
        async with session.get(f"{address}/api/v2/alerts?active=true") as response:
            return {alert["labels"].get("group_origin", ""): alert for alert in await response.json()}
    return {}


async def wait_for_firing_alerts(
    session: ClientSession, address: str, wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while not wanted(found := await firing_alerts(session, address)):
            await asyncio.sleep(0.1)
        return found


async def test_alertmanager_shows_alerts_until_they_end(
    installation: AlertsInstallation, alertmanager: str
) -> None:
    target = {
        "name": "alertmanager",
        "kind": "alertmanager",
        "urls": [alertmanager],
        "labels": {"severity": "page"},
        "resend": "1s",
    }
    service = installation.start(target)
    await installation.wait_until_joined(service)
    answers = WindowedAnswers(installation, "late")
    async with ClientSession() as session:
        await answers.write(5, "EWR")
        await answers.write(6, "EWR", "JFK")
        found = await wait_for_firing_alerts(session, alertmanager, lambda found: set(found) == {"EWR", "JFK"})
        assert found["EWR"]["labels"] == {
            "alertname": "SottoAlert",
            "source": "feed",
            "stream": "late",
            "group_origin": "EWR",
            "severity": "page",
        }
        assert found["EWR"]["startsAt"] == "2013-01-01T06:00:00.000Z"
        assert found["JFK"]["startsAt"] == "2013-01-01T07:00:00.000Z"
        assert found["EWR"]["annotations"]["window"] == "2013-01-01 06:00–07:00 UTC"
        assert found["EWR"]["generatorURL"] == "https://sotto.example.org/#/streams/late"
        # The alert is repeated, so that it does not end by itself.
        ends = found["JFK"]["endsAt"]
        await wait_for_firing_alerts(session, alertmanager, lambda found: found["JFK"]["endsAt"] > ends)
        # A window that is not above the threshold ends the alert.
        await answers.write(7, "JFK")
        await wait_for_firing_alerts(session, alertmanager, lambda found: set(found) == {"JFK"})
        # A restarted service finds the firing alerts, and those that have ended in the meantime.
        os.kill(service.pid, signal.SIGKILL)
        await answers.write(8, "JFK", "LGA")
        service = installation.start(target)
        await wait_for_firing_alerts(session, alertmanager, lambda found: set(found) == {"JFK", "LGA"})
        found = await firing_alerts(session, alertmanager)
        assert found["JFK"]["startsAt"] == "2013-01-01T07:00:00.000Z"
        os.kill(service.pid, signal.SIGKILL)
        await answers.write(9, "LGA")
        installation.start(target)
        await wait_for_firing_alerts(session, alertmanager, lambda found: set(found) == {"LGA"})


async def test_watch_shows_alerts_and_ends_immediately(installation: AlertsInstallation) -> None:
    client = installation.client
    found: list[tuple[str, str]] = []

    async def watch() -> None:
        async for notice in client.watch("la*"):
            if notice.answer is not None:
                found.append((notice.stream, notice.answer.outcome))
            else:
                found.append((notice.stream, notice.ended or ""))

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(PATIENCE):
            while not found:  # the watch begins with the answers that come after it has connected
                await installation.ask("late", HIGH)
                await asyncio.sleep(0.2)
            await installation.ask("early", HIGH)
            await installation.ask("late", LOW)
            await client.close("feed", "late", "no longer needed")
            while found[-1] != ("late", "closed: no longer needed"):
                await asyncio.sleep(0.1)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert set(found) == {("late", "above"), ("late", "closed: no longer needed")}
    with pytest.raises(Unknown, match="stream 'nobody' does not exist"):
        await anext(client.watch("nobody"))


async def test_watch_from_beginning_shows_ends_after_answers_with_their_time(
    installation: AlertsInstallation,
) -> None:
    client = installation.client
    await installation.ask("late", HIGH)
    await client.close("feed", "late", "no longer needed")
    closed = time.time()
    runs = []
    for streams in ((), ("late",)):
        async with asyncio.timeout(PATIENCE), aclosing(client.watch(*streams, from_beginning=True)) as notices:
            runs.append([await anext(notices) for _ in range(2)])
    assert runs[0] == runs[1]
    alert, end = runs[0]
    assert (alert.is_alert, end.ended) == (True, "closed: no longer needed")
    assert alert.time <= end.time <= closed + 1


async def test_watch_command_prints_lines_and_ends_cleanly(installation: AlertsInstallation) -> None:
    await WindowedAnswers(installation, "late").write(5, "EWR")
    environment = {
        **os.environ,
        "SOTTO_BOOTSTRAP": installation.settings.bootstrap,
        "SOTTO_PREFIX": installation.settings.prefix,
    }
    command = [sys.executable, "-m", "sotto", "watch", "--from-beginning", "--json", "late"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = json.loads(await process.stdout.readline())
    assert (line["stream"], line["source"], line["group"]) == ("late", "feed", {"origin": "EWR"})
    assert line["time"] <= format_time(2e10)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        output, error = await process.communicate()
    assert (output, error, process.returncode) == (b"", b"", 130)


async def test_monitor_shows_firing_alerts_of_before_and_after_its_start(
    installation: AlertsInstallation, tmp_path: Path
) -> None:
    tokens = make_names(tmp_path)
    answers = WindowedAnswers(installation, "late")
    await answers.write(5, "EWR", "JFK")
    await answers.write(6, "JFK")
    own = installation.settings.model_copy(
        update={
            "monitor_port": free_port(),
            "monitor_names_file": str(tmp_path / FILE),
            "monitor_alerts": True,
            "monitor_burst": 10_000,
        }
    )
    address = f"http://127.0.0.1:{own.monitor_port}/api/alerts"
    headers = {"Authorization": f"Bearer {tokens['viewer']}"}

    async def until(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(OSError):
                    async with session.get(address, headers=headers) as response:
                        if wanted(found := await response.json()):
                            return dict(found)
                await asyncio.sleep(0.1)

    with Service("monitor", own, None, tmp_path / "monitor.log"):
        async with ClientSession() as session:
            found = await until(lambda found: found["complete"] and found["firing_total"] == 1)
            [firing] = found["firing"]
            assert (firing["latest"]["group"], firing["alerts"]) == ({"origin": "JFK"}, 2)
            assert [row["group"]["origin"] for row in found["recent"]].count("EWR") == 1
            assert found["sources"] == [{"source": "feed", "firing": 1, "alerts": 3}]
            await answers.write(7, "LGA")
            found = await until(lambda found: found["total"] == 4)
            assert [row["latest"]["group"]["origin"] for row in found["firing"]] == ["LGA"]


async def test_alerts_service_has_health_and_metrics(installation: AlertsInstallation) -> None:
    port = free_port()
    installation.settings = installation.settings.model_copy(update={"metrics_port": port})
    async with Receiver() as receiver, ClientSession() as session:
        receiver.behave = lambda _: web.Response(status=500)
        service = installation.start(installation.webhook(receiver))
        await installation.wait_until_joined(service)
        await installation.ask("late", HIGH)
        await receiver.until(lambda: len(receiver.requests) > 1, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while True:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                    if response.status == 200:  # the service stays ready although a target is down
                        break
                await asyncio.sleep(0.1)
            figure = 'sotto_alerts_failures_total{reason="status",target="oncall"}'
            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert figure in await response.text()
        log = service.log.read_text()
        assert "in-the-address" not in log
        assert SECRET not in log
