"""A monitored installation whose source has periods."""

from __future__ import annotations

from tests.unit.monitor.installation import Installation
from tests.unit.periods import DAYS, FLIGHTS, LATE, events


def installation(days: int = 4) -> Installation:
    found = Installation()
    driver = found.driver
    driver.register(FLIGHTS)
    driver.open(LATE)
    driver.publish("flights", events(days))
    for day in DAYS[1 : days + 1]:
        driver.advance("flights", day)
    found.open()
    return found
