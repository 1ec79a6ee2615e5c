"""Connections that break, in uvloop as in asyncio, and that make no topics where they are not to.

asyncio's transports take what is written after they were cut, and drop it; whoever waits for the answer is told once the reader has noticed.
uvloop's raise RuntimeError, which aiokafka does not expect: it would end the task that asks for a cluster's metadata, or the one that
fetches, and whoever waits for these would wait for ever.
"""

from __future__ import annotations

from typing import Any

from aiokafka import conn, errors
from aiokafka.protocol.metadata import MetadataRequest


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's connection, which is closed as soon as it turns out to be cut."""

    makes_topics = True
    """Whether brokers may make a topic that is asked for over it (see ``looking``)."""

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """Send a request, and give what its answer can be awaited by.

        Raises:
            KafkaConnectionError: there is no connection any more.
        """
        if not self.makes_topics and isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False  # noqa: SLF001  (aiokafka's clients do not pass it on)
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN, exc=error)
            raise errors.KafkaConnectionError(f"Connection at {self._host}:{self._port} is closed") from error


def install() -> None:
    """Have every client of this process connect so."""
    conn.AIOKafkaConnection = Connection
