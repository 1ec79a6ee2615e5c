"""Publishes questions as raw records."""

from __future__ import annotations

from sotto import AsyncClient


async def ask_raw(client: AsyncClient, name: str) -> None:
    answer = await client.ask({"id": name, "stream": "ward", "value": 1.0}, outcomes=True)
    assert answer.outcome == "below"
