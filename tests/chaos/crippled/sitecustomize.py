"""Gives services that have this folder on their path a client library or a machine with weaknesses.

``CRIPPLED_POLL_MS``: consumers leave their group if nothing was fetched for so many milliseconds, unless their settings forbid it.
``CRIPPLED_DEAD_PORT``: half of the brokers in Kafka's metadata are down; nothing listens at this port.
``CRIPPLED_CLOCK_AHEAD``: the machine's clock is so many seconds ahead.
"""

import os
import time
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.cluster import ClusterMetadata
from aiokafka.structs import BrokerMetadata

DEAD_NODE = 4711

if interval := os.environ.get("CRIPPLED_POLL_MS"):
    AIOKafkaConsumer.__init__.__kwdefaults__["max_poll_interval_ms"] = int(interval)

if port := os.environ.get("CRIPPLED_DEAD_PORT"):
    dead = BrokerMetadata(DEAD_NODE, "127.0.0.1", int(port), None)
    update = ClusterMetadata.update_metadata

    def with_a_dead_node(self: ClusterMetadata, metadata: Any) -> None:
        update(self, metadata)
        self._brokers[DEAD_NODE] = dead

    ClusterMetadata.update_metadata = with_a_dead_node

if ahead := os.environ.get("CRIPPLED_CLOCK_AHEAD"):
    right, seconds = time.time, float(ahead)
    time.time = lambda: right() + seconds
