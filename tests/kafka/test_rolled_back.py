"""A rollback drill: a broker's whole disk is restored from an earlier backup, with topics and offsets."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from schemas import RegisterSource
from sotto import AsyncClient, Refused, Timeout
from stream.engine.restore import create_reader
from stream.kafka.broker_addresses import free_port
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import Service
from tests.kafka.sites import FEED, HIGH, WAIT, Site, open_request, spec, wait_for_state

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

REASON = "disk of broker 1 restored from last night"
STARTS = 2
"""How many times services are started on topics that were rolled back."""


class Disk:
    """A broker with its disk, which can be copied and restored while the broker is stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._copy = folder / "broker", folder / "copy"
        self._broker = LocalBroker(self._folder)
        self._port = 0

    def start(self) -> str:
        running = self._broker.start(self._port or free_port(), timeout=180)
        self._port = running.port
        return running.bootstrap

    def back_up(self) -> None:
        self._broker.stop()
        shutil.copytree(self._folder, self._copy)
        self.start()

    def restore(self) -> None:
        self._broker.stop()
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        self.start()

    def kill(self) -> None:
        self._broker.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def site(disk: Disk, tmp_path: Path) -> Site:
    """An installation whose witness is a file on another disk."""
    tmp_path.chmod(0o700)
    NoiseKey.generate().save(tmp_path / "noise.key")
    witness = f"file://{tmp_path}/anchors.jsonl"
    return Site(disk.start(), f"drill-{uuid.uuid4().hex[:6]}", tmp_path, witnesses=witness, anchor_epsilon=0.0)


async def answers(site: Site) -> int:
    """Return the sum of the answers' end offsets, which grow with every record, committed or not."""
    partitions = [TopicPartition(f"{site.settings.prefix}.answers", number) for number in range(2)]
    async with create_reader(site.settings, isolation_level="read_uncommitted") as consumer:
        return sum((await consumer.end_offsets(partitions)).values())


async def wait_until_logged(service: Service, words: str) -> None:
    async with asyncio.timeout(WAIT):
        while words not in service.log.read_text():
            await asyncio.sleep(0.2)


def read_readiness(port: int) -> str:
    """Return a service's response at /readyz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as found:
            return str(found.read().decode())
    except urllib.error.HTTPError as refused:
        return refused.read().decode()


async def check_refused_at_start(site: Site, client: AsyncClient, number: int) -> None:
    """Check that services stay up and report what they found, but neither grant nor answer."""
    before = await answers(site)
    budget, worker = site.services
    await wait_until_logged(budget, "was anchored")
    await wait_until_logged(worker, "was anchored")
    for stream in ("ward", "idle"):
        with pytest.raises(Timeout):
            await client.ask(stream, value=-HIGH, timeout=3.0)
    with pytest.raises(Timeout):
        await client.request(open_request(f"again-{number}"), 3.0)
    assert await answers(site) == before
    assert (budget.exit_status, worker.exit_status) == (None, None)


async def test_installation_rolled_back_is_refused_until_accepted(site: Site, disk: Disk) -> None:
    """It is refused at every start; after the acceptance, possible charges count as spent, and no question is answered again."""
    await create_topics(site.settings)
    async with site.running_services() as client:
        await client.request(RegisterSource(request="register", source=FEED), WAIT)
        for stream in ("ward", "idle", "done"):
            await client.request(open_request(stream), WAIT)
        assert (await client.ask("ward", value=HIGH, timeout=WAIT)).outcome == "above"
        await client.close("feed", "done")
        await wait_for_state(client, "done", "closed")
    disk.back_up()
    async with site.running_services() as client:
        await client.request(open_request("late"), WAIT)
        for stream in ("ward", "late", "idle"):
            assert (await client.ask(stream, value=HIGH, timeout=WAIT)).outcome == "above"
    assert "anchors.jsonl: the trail contains" in site.run_successfully("ledger", "verify")
    disk.restore()
    found = site.sotto("ledger", "verify")
    assert found.returncode == 1
    assert "the trail lacks the head" in found.stdout
    for number in range(STARTS):
        port = free_port()
        async with site.running_services(port) as client:
            await check_refused_at_start(site, client, number)
            assert "was anchored" in read_readiness(port)
    nothing = site.run_refused("ledger", "accept-rollback", "--since", "nothing", "--reason", REASON)
    assert "so there were requests after this state" in nothing
    accepted = site.run_successfully("ledger", "accept-rollback", "--since", "halt", "--reason", REASON)
    assert "streams that were not closed (2)" in accepted
    assert "there is nothing to accept" in site.run_refused(
        "ledger", "accept-rollback", "--since", "halt", "--reason", REASON
    )
    async with site.running_services() as client:
        source = await client.budget("feed")
        assert source.state == "halted"
        assert source.spent.epsilon == pytest.approx(source.granted.epsilon - source.refunded.epsilon)
        for stream in ("ward", "idle", "done"):
            assert (await client.ask(stream, value=HIGH, timeout=WAIT, outcomes=True)).outcome == "halted"
        with pytest.raises(Refused, match="is halted"):
            await client.open(spec("more"))
        [restored] = [entry async for entry in client.trail() if entry.kind == "restored"]
        assert (restored.reason, restored.lost) == (REASON, 2)
    verified = json.loads(site.run_successfully("ledger", "verify", "--json"))
    assert verified["findings"] == []
    assert f"a rollback was accepted before: {REASON}" in verified["witnesses"][0]
