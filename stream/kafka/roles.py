"""What an engine runs: workers, or the budget service."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stream.processors.base import Processor


@dataclass(frozen=True)
class Role:
    """Which processor an engine runs, and under which names Kafka knows it."""

    name: Literal["worker", "budget"]
    group: str
    status: str
    make: Callable[[int], Processor]

    @property
    def member(self) -> str:
        """This process's name in the group, and in what it reports."""
        return f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """The static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"
