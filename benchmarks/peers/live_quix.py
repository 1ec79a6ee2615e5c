"""Windowed counts for many streams and groups with Quix Streams, of each person at most so many, exactly once, until SIGTERM.

Arguments: bootstrap address, input topic, output topic, state folder, and the job. State of Quix Streams belongs to the key of
the message at hand: people are bounded under their own key, and what counts goes to its group's key by the topic that ``group_by`` makes. State is
in RocksDB with a changelog. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from quixstreams import Application, State  # type: ignore[import-not-found]


def main(bootstrap: str, source: str, sink: str, folder: str, job: str) -> None:
    """Build the pipeline and run it."""
    streams, conditions, _, window, lateness, contribution = map(int, job.split(","))
    application = Application(
        broker_address=bootstrap,
        consumer_group=sink,
        processing_guarantee="exactly-once",
        auto_offset_reset="earliest",
        commit_every=20_000,
        commit_interval=1.0,
        state_dir=folder,
        producer_extra_config={"batch.size": 1_000_000, "linger.ms": 100},
        loglevel="WARNING",
    )

    def bound(event: dict[str, Any], state: State) -> dict[str, Any]:
        """The conditions under which an event counts; the state is its person's, older windows are dropped."""
        start = event["at"] - event["at"] % window
        known = state.get("seen", {})
        kept = {one: seen for one, seen in known.items() if int(one) > start - window - lateness}
        seen = kept.setdefault(str(start), [0] * conditions)
        counted = [one for one in range(min(conditions, event["delay"] // 10 + 1)) if seen[one] < contribution]
        if counted:
            for one in counted:
                seen[one] += 1
            state.set("seen", kept)
        return {"group": event["group"], "counted": counted}

    def first(event: dict[str, Any]) -> list[int]:
        return add([0] * conditions, event)

    def add(numbers: list[int], event: dict[str, Any]) -> list[int]:
        for one in event["counted"]:
            numbers[one] += 1
        return numbers

    def told(closed: dict[str, Any]) -> list[dict[str, Any]]:
        numbers = closed["value"]
        return [
            {"stream": stream, "start": closed["start"], "count": numbers[stream % conditions]}
            for stream in range(streams)
        ]

    arrivals = application.topic(
        source,
        value_deserializer="json",
        key_deserializer="bytes",
        timestamp_extractor=lambda value, *_: value["at"],
    )
    answers = application.topic(sink, value_serializer="json", key_serializer="str")
    frame = application.dataframe(arrivals).apply(bound, stateful=True)
    frame = frame.group_by("group")
    frame = frame.tumbling_window(timedelta(milliseconds=window), timedelta(milliseconds=lateness))
    frame = frame.reduce(add, first).final(closing_strategy="partition")
    frame.apply(told, expand=True).to_topic(answers)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:6])
