"""What an engine runs: workers, the budget service, or feeds."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stream.processors.base import Processor

ServiceName = Literal["worker", "budget", "feed"]
"""The services that engines run."""


@dataclass(frozen=True)
class Role:
    """Which processor an engine runs, and under which names Kafka knows it."""

    name: ServiceName
    group: str
    status: str
    make: Callable[[int], Processor]
    reports: bool = True
    """Whether its restores are told on the status topic, partition by partition."""

    patience: float = 0.0
    """Seconds that what is written to the changelog alone may wait for its transaction: only if nobody else reads it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Fields of the partitions' log lines beside role and partition, such as the source."""

    process: str = ""
    """The process's name, where it is not to be made of host and number."""

    @property
    def member(self) -> str:
        """This process's name in the group, and in what it reports."""
        return self.process or f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """The static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"
