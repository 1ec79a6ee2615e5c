"""Streams of pmw from before estimates are still read, restored and answered as earlier.

The records next to this file were written by the version before estimates, with the key of these tests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stream.processing.protocol import Outputs, Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY
from tests.processing import process_records

WRITTEN = json.loads(Path(__file__).with_name("pmw_before_estimates.json").read_text())
TOPICS = Topics(partitions=1)


def records(name: str) -> list[Record]:
    """Return the records that the previous version wrote to a topic."""
    topic = getattr(TOPICS, name)
    return [
        Record(topic, 0, offset, 0, key.encode(), value.encode(), ())
        for offset, (key, value, _) in enumerate(WRITTEN[name])
    ]


def worker(*restored: Sequence[Record]) -> QueryProcessor:
    store = TableStore.keyed_by(KEY)
    people: dict[str, list[Any]] = {
        "age": [(n * n + 3 * n) % 7 for n in range(300)],
        "sex": ["F" if n % 3 else "M" for n in range(300)],
    }
    store.put("people", pl.DataFrame(people))
    made = QueryProcessor(TOPICS, 0, KEY, store)
    for some in restored:
        made.restore(some)
    made.end_restore()
    return made


def documents_to(outputs: Outputs, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for of, _, messages in outputs for _, value, _ in messages if of == topic]


def without(answer: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in names}


def test_streams_before_estimates_repeat_their_answers() -> None:
    made = worker(records("control"))
    queries = records("queries")
    answers = [
        answer
        for part in (queries[:18], queries[18:])
        for answer in documents_to(process_records(made, part), TOPICS.answers)
    ]
    recorded = [json.loads(value) for _, value, _ in WRITTEN["answers"]]
    later = {"interval", "alpha"}
    assert [without(answer, later) for answer in answers] == [without(answer, later) for answer in recorded]
    # The error bound of a share of a noisy number of rows is tighter now; all other bounds are equal.
    shares = {
        record["id"] for record in (json.loads(query.value or b"") for query in queries) if record.get("fraction")
    }
    for answer, before in zip(answers, recorded, strict=True):
        if answer.get("alpha") != before.get("alpha"):
            assert answer["id"] in shares
            assert answer["alpha"] < before["alpha"]
    assert "noisy" in {answer["basis"] for answer in answers}


def test_streams_before_estimates_are_restored() -> None:
    live = worker(records("control"))
    process_records(live, records("queries"))
    restored = worker(records("control"), records("state"))
    assert restored.streams.snapshot_streams() == live.streams.snapshot_streams()
    place = len(WRITTEN["queries"])
    late = [
        Record(TOPICS.queries, 0, place + number, 0, name.encode(), json.dumps(query).encode(), ())
        for number, (name, query) in enumerate(
            (name, {"id": f"late-{name}", "stream": name, "where": "age <= 2"})
            for name in ("planned", "chosen", "textbook")
        )
    ]
    assert documents_to(process_records(restored, late), TOPICS.answers) == documents_to(
        process_records(live, late), TOPICS.answers
    )
