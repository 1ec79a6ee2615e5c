"""Noisy threshold answers with Faust, exactly once, until SIGTERM.

Takes bootstrap address, input topic, output topic and state folder from PEER_BOOTSTRAP, PEER_SOURCE, PEER_SINK and
PEER_FOLDER, for Faust reads the command line itself. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import os
import random
from typing import Any

import faust

PARTITIONS = 4
QUERY_SCALE = 4.0
THRESHOLD_SCALE = 2.0

sink = os.environ["PEER_SINK"]
app = faust.App(
    f"faust-{sink}",
    broker=f"kafka://{os.environ['PEER_BOOTSTRAP']}",
    processing_guarantee="exactly_once",
    store="memory://",
    topic_partitions=PARTITIONS,
    topic_replication_factor=1,
    table_standby_replicas=0,
    consumer_auto_offset_reset="earliest",
    broker_max_poll_records=5000,
    broker_commit_interval=0.5,
    stream_buffer_maxsize=16384,
    datadir=os.environ["PEER_FOLDER"],
    web_enabled=False,
)
queries = app.topic(os.environ["PEER_SOURCE"], key_type=bytes, value_serializer="json", partitions=PARTITIONS)
answers = app.topic(sink, key_type=bytes, value_serializer="json", partitions=PARTITIONS)
streams = app.Table("streams", default=dict, partitions=PARTITIONS)


def laplace(scale: float) -> float:
    """Laplace noise from Python's own generator."""
    return scale * (random.expovariate(1.0) - random.expovariate(1.0))


@app.agent(queries)
async def answer(events: Any) -> None:
    """Answer query by query."""
    async for message in events.events():
        event = message.value
        state = streams.get(event["stream"]) or {"answered": 0, "shift": laplace(THRESHOLD_SCALE)}
        above = event["value"] + laplace(QUERY_SCALE) >= event["threshold"] + state["shift"]
        streams[event["stream"]] = {**state, "answered": state["answered"] + 1}
        reply = {
            "id": event["id"],
            "stream": event["stream"],
            "index": state["answered"],
            "outcome": "above" if above else "below",
        }
        await answers.send(key=message.key, value=reply)


if __name__ == "__main__":
    app.main()
