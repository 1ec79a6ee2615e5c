"""Settings, read from ``SOTTO_…`` environment variables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything that an operator may set; secrets are not among it."""

    model_config = SettingsConfigDict(env_prefix="SOTTO_", frozen=True, extra="ignore")

    bootstrap: str = "127.0.0.1:9092"
    """Kafka's addresses, comma-separated."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "sotto"
    """First part of every topic, group and transactional id: one installation per prefix."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Partitions of queries, control, answers and state, when topics are created."""

    replication: Annotated[int, Field(ge=1, le=10)] = 1
    """Replicas of each topic, when topics are created."""

    batch_events: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most events answered in one transaction."""

    batch_bytes: Annotated[int, Field(ge=16_384, le=16 * 1024 * 1024)] = 1_000_000
    """Largest record batch produced; keep it below the topics' max.message.bytes."""

    fetch_bytes: Annotated[int, Field(ge=65_536)] = 4 * 1024 * 1024
    """Most bytes prefetched per partition: with the batch limits, what bounds a worker's memory."""

    transaction_timeout_ms: Annotated[int, Field(ge=1000)] = 10_000
    """How long a transaction of a dead worker may hold back readers."""

    session_timeout_ms: Annotated[int, Field(ge=1000)] = 6_000
    """How long a silent worker keeps its partitions."""

    heartbeat_ms: Annotated[int, Field(ge=100)] = 1_000
    """Milliseconds between two heartbeats."""

    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of the Prometheus endpoint on 127.0.0.1; 0 for none."""
