"""An installation with a history in its audit trail."""

from __future__ import annotations

from stream.monitor.budget_history import DAY_SECONDS
from tests.unit.monitor.installation import HIGH, LOW, Installation, spec

DAYS = float(DAY_SECONDS)


def installation_with_history() -> Installation:
    installation = Installation()
    installation.open()
    for number in range(4):
        installation.now += DAYS
        installation.driver.open(spec(f"ward-{number}"))
    installation.now += 3600.0
    installation.ask("ward-0", LOW, HIGH, HIGH)
    installation.driver.close("feed", "ward-1")
    installation.flow()
    return installation
