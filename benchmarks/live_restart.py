"""Measures the time until a restarted feed counts again with many people in open windows, and their memory."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.installation import FOLDER
from benchmarks.live_course import Positions, used
from benchmarks.live_job import Job, Opened, People, fill, fill_once, live_topic, open_streams
from benchmarks.programs import Program, service
from stream.settings import Settings

TOPIC: Final = "live-people"
DAY_MS: Final = 86_400_000
MORE: Final = 1000
"""Events that wait for the feed when it comes back."""
SECONDS: Final = 600.0


@dataclass(frozen=True)
class Restart:
    """Seconds from the start of the feed's process until events that waited for it are counted and committed."""

    people: int
    killed_seconds: float
    """After a ``kill -9``."""
    stopped_seconds: float
    """After a stop in good order."""
    empty_rss: int
    full_rss: int
    """Memory of the process after a restart, with all people in open windows and with none."""
    load: float

    @property
    def bytes_each(self) -> float:
        """Memory per person and window, including the whole process."""
        return (self.full_rss - self.empty_rss) / self.people


async def measure(base: Settings, people: int) -> Restart:
    """Count one event of each person in a window that stays open, and restart twice."""
    job = Job(conditions=1, window_ms=DAY_MS, lateness_ms=60_000)
    await live_topic(base, TOPIC)
    now = int(1000 * time.time())
    opened = await open_streams(base, "live-restart", TOPIC, job, now - now % DAY_MS)
    everybody = People(people, base.partitions, job.groups)
    load, sent = os.getloadavg()[0], MORE
    async with Positions(opened.settings, opened.group, TOPIC) as positions:
        await fill(base, TOPIC, everybody, MORE)
        feed, _ = await _until(opened, positions, sent)
        empty = used(feed.pid)[1]
        await fill_once(base, TOPIC, everybody, int(1000 * time.time()))
        sent += people
        await positions.follow(feed, sent, SECONDS)
        feed.kill()
        await fill(base, TOPIC, everybody, MORE)
        sent += MORE
        feed, killed = await _until(opened, positions, sent)
        feed.stop()
        await fill(base, TOPIC, everybody, MORE)
        sent += MORE
        feed, stopped = await _until(opened, positions, sent)
        full = used(feed.pid)[1]
        feed.stop()
    return Restart(people, killed, stopped, empty, full, load)


async def _until(opened: Opened, positions: Positions, sent: int) -> tuple[Program, float]:
    """Start a feed, and wait until it has counted all that was sent."""
    log = FOLDER / "logs" / f"restart-feed-{sent}.log"
    # Restarted services have names, so their partitions come back at once, and not after a session.
    named = opened.settings.model_copy(update={"instance": "feed"})
    feed = service("feed", named, opened.noise_key, log)
    try:
        course = await positions.follow(feed, sent, SECONDS)
    except BaseException:
        feed.stop()
        raise
    if course.samples[-1].events < sent:
        feed.stop()
        raise TimeoutError(f"{course.samples[-1].events} of {sent} events within {SECONDS:.0f} s; see {log}")
    return feed, course.samples[-1].seconds
