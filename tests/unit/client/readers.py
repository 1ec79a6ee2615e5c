"""Readers of topics that do not exist."""

from __future__ import annotations

import asyncio
from typing import Any


class Nothing:
    """A reader of a topic without records."""

    def assign(self, _partitions: Any) -> None:
        return

    async def seek_to_end(self, *_: Any) -> None:
        return

    async def position(self, _partition: Any) -> int:
        return 0

    async def getmany(self, **_: Any) -> dict[Any, Any]:
        await asyncio.sleep(0.01)
        return {}
