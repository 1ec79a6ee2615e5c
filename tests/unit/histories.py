"""An installation with streams in every state."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sotto import Driver
from tests.builders import KEY
from tests.chaos.load import ROWS, Questions, sources, specs
from tests.unit.installation import query

HALTED, CLOSED = "stream-1", "stream-2"


@cache
def asked_installation() -> Driver:
    """Return an installation with asked streams of every mechanism in one partition; one is halted, one closed, one exhausted."""
    driver = Driver(KEY, partitions=1)
    for source in sources(Path("people.csv")):
        driver.register(source, ROWS if source.source == "people" else None)
    for one in specs(5):
        driver.open(one, acknowledge=True)
    asked = Questions(specs(5), 1)
    for _ in range(8):
        driver.ask_many([asked.next()[2] for _ in range(24)])
    driver.ask_many([query(f"high-{number}", "stream-3", 1e9) for number in range(5)])
    driver.halt("feed", HALTED)
    driver.close("feed", CLOSED)
    driver.ask_many([asked.next()[2] for _ in range(24)])
    return driver
