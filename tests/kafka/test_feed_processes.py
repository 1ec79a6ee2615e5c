"""Several feeds share a live topic; whichever feed is killed, each closed window is asked once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream.settings import variable_of
from tests.chaos.live import PARTITIONS, Live, live_topic
from tests.chaos.loaded_installation import LoadedInstallation
from tests.chaos.windows import YESTERDAY

pytestmark = pytest.mark.kafka

PATIENCE = 90.0


def log_entries(log: Path, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("event") == event]


async def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.1)


async def send_people(topic: Live, steps: range) -> None:
    for step in steps:
        now = YESTERDAY + 1000 * step
        await topic.send(now, 6000, 40)
        await topic.mark(now)
        await asyncio.sleep(0.2)


async def test_surviving_feed_continues_from_warm_copies(
    installation: LoadedInstallation,
) -> None:
    installation.start("budget")
    installation.start("worker")
    feeds = [installation.start("feed")]
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = feeds
    try:
        await send_people(topic, range(4))
        await topic.settled(YESTERDAY + 3000)
        feeds.append(installation.start("feed"))
        # Both feeds have partitions of the topic and of merging, and standby copies of the other's partitions.
        copies = installation.settings.partitions + PARTITIONS
        await wait_until(
            "warm copies of all",
            lambda: sum(len(log_entries(feed.log, "standby ready")) for feed in feeds) >= copies,
        )
        await send_people(topic, range(4, 7))
        feeds[0].kill()
        await send_people(topic, range(7, 10))
        await topic.settled(YESTERDAY + 9000)
        assert any(line["warm"] for line in log_entries(feeds[1].log, "partition ready"))
    finally:
        await topic.producer.stop()


async def test_feeds_under_one_parent_share_topic_and_restart_after_kill(
    installation: LoadedInstallation, tmp_path: Path
) -> None:
    installation.start("budget")
    installation.start("worker")
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    log = tmp_path / "feeds.log"
    variables = {variable_of(name): str(getattr(installation.settings, name)) for name in ("bootstrap", "prefix")}
    # With so long a session, killed feeds get their partitions back in time only because restarted feeds keep their names.
    variables[variable_of("session_timeout_ms")] = "60000"
    command = [sys.executable, "-m", "sotto", "serve", "feed", "--json-logs", "--processes", "2"]
    with log.open("wb") as output:
        parent = subprocess.Popen(  # noqa: ASYNC220  (started at once)
            command, stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        await wait_until("two feeds", lambda: len(log_entries(log, "joined")) >= 4)
        await send_people(topic, range(4))
        for pid in [line["pid"] for line in log_entries(log, "process started")]:
            os.kill(pid, signal.SIGKILL)
            await send_people(topic, range(4, 7))
        await wait_until("both again", lambda: len(log_entries(log, "process started")) == 4)
        await send_people(topic, range(7, 10))
        await topic.settled(YESTERDAY + 9000, PATIENCE)
        parent.terminate()
        assert await asyncio.to_thread(parent.wait, PATIENCE) == 0
    finally:
        parent.kill()
        parent.wait()
        await topic.producer.stop()
