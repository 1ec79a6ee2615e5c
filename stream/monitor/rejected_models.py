"""What the API answers about refused events."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stream.monitor.models import Time, View


class RejectedReason(View):
    """How many events were refused for one reason."""

    code: str
    count: int
    last: Time


class RejectedEvent(View):
    """One refused event, named by its position and, of a question, its address; the rest of it is never shown."""

    time: Time
    topic: str
    partition: int
    offset: int
    code: str
    message: str
    stream: Annotated[str | None, Field(description="The stream that was asked, where that can be read.")]
    id: Annotated[str | None, Field(description="The question's id, where that can be read.")]


class RejectedView(View):
    """Refused events that the log still holds, by reason, with the latest ones of those asked for, newest first.

    The latest hundred of each reason are remembered; ``matching`` counts those that match.
    """

    total: int
    reasons: list[RejectedReason]
    matching: int
    recent: list[RejectedEvent]
