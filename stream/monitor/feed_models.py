"""What the API answers about the feed of a live topic. As ``models``, of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stream.monitor.models import Time, View


class FeedProcess(View):
    """One running feed process; what it says of itself is null until it has said it."""

    member: str
    started: Time | None
    memory: Annotated[int | None, Field(description="Bytes that it takes up.")]


class FeedView(View):
    """How far the feed of a live topic is, from what is public, and which processes feed: any may have partitions of it."""

    topic: str
    clock: Literal["broker", "marks"]
    idle: Annotated[
        str | None, Field(description="How far a silent partition's clock is behind; null for a clock of marks.")
    ]
    asked_to: Annotated[
        Time | None,
        Field(
            description="The end of the last window that was asked and answered, by the events' time; null before any."
        ),
    ]
    asked_at: Annotated[Time | None, Field(description="When a stream of it was last answered for.")]
    processes: list[FeedProcess]
