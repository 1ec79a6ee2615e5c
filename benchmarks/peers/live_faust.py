"""Windowed counts for many streams and groups with Faust, of each person at most so many, exactly once, until SIGTERM.

Takes bootstrap address, input topic, output topic, state folder and the job from PEER_… variables, for Faust reads the
command line itself. Both tables are in memory with a changelog; a table of Faust may be written under any key, in the partition
of the event at hand. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import os
from typing import Any

import faust

sink = os.environ["PEER_SINK"]
partitions = int(os.environ["PEER_PARTITIONS"])
streams, conditions, groups, window, lateness, contribution = map(int, os.environ["PEER_JOB"].split(","))
app = faust.App(
    sink,
    broker=f"kafka://{os.environ['PEER_BOOTSTRAP']}",
    processing_guarantee="exactly_once",
    store="memory://",
    topic_partitions=partitions,
    topic_replication_factor=1,
    table_standby_replicas=0,
    consumer_auto_offset_reset="earliest",
    broker_max_poll_records=5000,
    broker_commit_interval=0.5,
    stream_buffer_maxsize=16384,
    datadir=os.environ["PEER_FOLDER"],
    web_enabled=False,
)
arrivals = app.topic(os.environ["PEER_SOURCE"], key_type=bytes, value_serializer="json", partitions=partitions)
answers = app.topic(sink, key_type=bytes, value_serializer="json", partitions=partitions)
people = app.Table("people", default=dict, partitions=partitions)
counts = app.Table("counts", default=list, partitions=partitions)


@app.agent(arrivals)
async def count(events: Any) -> None:
    """Count event by event; a person's counters of older windows go with the next event of that person."""
    opened: dict[int, set[int]] = {}
    async for message in events.events():
        event, stamp, partition = message.value, 1000 * message.message.timestamp, message.message.partition
        of_partition = opened.setdefault(partition, set())
        for start in [one for one in of_partition if stamp >= one + window + lateness]:
            of_partition.discard(start)
            await close(start, partition)
        start = event["at"] - event["at"] % window
        if stamp >= start + window + lateness:
            continue
        known = people.get(event["user"]) or {}
        kept = {one: seen for one, seen in known.items() if int(one) + window + lateness > stamp}
        seen = kept.setdefault(str(start), [0] * conditions)
        cell = f"{partition}/{start}/{event['group']}"
        numbers = counts.get(cell) or [0] * conditions
        counted = False
        for condition in range(min(conditions, event["delay"] // 10 + 1)):
            if seen[condition] < contribution:
                seen[condition] += 1
                numbers[condition] += 1
                counted = True
        if counted:
            of_partition.add(start)
            people[event["user"]] = kept
            counts[cell] = numbers


async def close(start: int, partition: int) -> None:
    """Tell all counts of a window, and forget them."""
    found = [counts.pop(f"{partition}/{start}/group {group}", None) or [0] * conditions for group in range(groups)]
    for stream in range(streams):
        numbers = [of_group[stream % conditions] for of_group in found]
        await answers.send(key=b"stream-%d" % stream, value={"stream": stream, "start": start, "counts": numbers})


if __name__ == "__main__":
    app.main()
