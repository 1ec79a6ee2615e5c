"""What targets are told of an alert: public fields alone, and the same bytes however often it is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from schemas import Answer
from stream.asking.alerts import written_time
from stream.asking.openings import Opening


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, as the webhook's receiver is told of it. ``time`` is Kafka's stamp, in seconds since the epoch."""

    installation: str
    opening: Opening
    answer: Answer
    time: float
    page: str | None = None
    counted: str = ""

    @property
    def key(self) -> str:
        """The alert's idempotency key: of this answer of this opening, and the same after every restart."""
        return f"{self.opening.incarnation}-{self.answer.index}"

    @property
    def body(self) -> bytes:
        """The message."""
        answer = self.answer.model_dump(mode="json", exclude_none=True, include=_FIELDS)
        data = {
            "key": self.key,
            "installation": self.installation,
            "source": self.opening.source,
            "stream": self.opening.stream,
            "query": self.answer.id,
            **answer,
            **({"counted": self.counted} if self.counted else {}),
            **({} if (link := stream_page(self.page, self.opening.stream)) is None else {"page": link}),
        }
        told: dict[str, Any] = {"type": "sotto.alert", "timestamp": written_time(self.time), "data": data}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


_FIELDS = {"index", "window", "group", "estimate", "alpha", "spent", "tops_left", "version"}


def stream_page(page: str | None, stream: str) -> str | None:
    """Where the monitor's page shows a stream."""
    return None if page is None else f"{page.rstrip('/')}/#/streams/{quote(stream, safe='')}"
