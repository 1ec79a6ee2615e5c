"""Defines the sources and streams that the tests on Kafka share, and asks a question of a stream."""

from __future__ import annotations

from typing import Any

from sotto import AsyncClient
from tests.builders import source, stream

FEED = source(neighbors="add-remove", epsilon=3.0)
VITALS = source("vitals", neighbors="add-remove", epsilon=4.0)


def ward(
    name: str = "ward", epsilon: float = 1.0, *, cutoff: int = 2, threshold: float = 1000.0
) -> dict[str, Any]:
    """Return the definition of an alarm on `feed`; its threshold is far above the noise."""
    return stream(name, mechanism={"threshold": threshold, "cutoff": cutoff}, epsilon=epsilon)


async def ask_low(client: AsyncClient, name: str) -> None:
    """Ask `ward` about a value far below its threshold and check the answer."""
    answer = await client.ask({"id": name, "stream": "ward", "value": 1.0}, outcomes=True)
    assert answer.outcome == "below"
