"""What the API answers about the services: who runs, which partitions each has, and how far behind they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stream.kafka.roles import ServiceName
from stream.monitor.models import Time, View


class Restore(View):
    """A partition's last restore: records read so far, and the offsets there are to read."""

    phase: Literal["restoring", "ready"]
    records: int
    total: int
    seconds: float
    updated: Time


class PartitionRow(View):
    """One input partition of a service."""

    role: ServiceName
    partition: int
    member: Annotated[str | None, Field(description="Who has it; null while nobody does.")]
    position: Annotated[int | None, Field(description="The next offset to be answered, as committed.")]
    end: int
    lag: int
    events_per_second: Annotated[float, Field(description="Over the last minute.")]
    restore: Restore | None


class MemberRow(View):
    """One running service process; what it says of itself is null until it has said it."""

    member: str
    role: ServiceName
    host: str
    partitions: list[int]
    lag: int
    events_per_second: float
    version: str | None = None
    started: Time | None = None
    memory: Annotated[int | None, Field(description="Bytes that it takes up.")] = None
    heard: Annotated[Time | None, Field(description="When it last said that it runs.")] = None


class WorkersView(View):
    """Who answers what, and how far behind."""

    time: Time
    members: list[MemberRow]
    partitions: list[PartitionRow]
