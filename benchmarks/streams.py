"""Makes millions of streams quickly: one is opened as usual, and the others differ in name and identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from sotto import Driver
from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import spans_of
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import Topics

CUTOFF: Final = 10
THRESHOLD: Final = 1e6
"""Far above every value: no stream may reach its cutoff during a run."""


def fetched(records: Sequence[Record]) -> Sequence[Record]:
    """Return records in the form that a worker gets from a fetch: in columns, if the kernel is compiled."""
    if compiled_kernel() is None:
        return records
    return RecordColumns(
        records[0].topic,
        records[0].partition,
        offsets=np.array([record.offset for record in records]),
        timestamps=np.array([record.timestamp for record in records]),
        keys=spans_of([record.key or b"" for record in records]),
        values=spans_of([record.value or b"" for record in records]),
    )


def definitions(key: NoiseKey, topics: Topics, streams: int, thresholds: int = 1) -> Iterator[Record]:
    """The control events of so many streams over one feed, under so many different thresholds."""
    driver = Driver(key, partitions=1)
    source = {
        "source": "bench",
        "neighbors": "add-remove",
        "epsilon": 1000.0,
        "kind": "values",
        "sensitivity": 1.0,
    }
    driver.register(source)
    mechanism = {"kind": "above_threshold", "threshold": THRESHOLD, "cutoff": CUTOFF}
    driver.open({"stream": "stream-0", "source": "bench", "mechanism": mechanism, "epsilon": 1.0})
    value = driver.records(driver.topics.control)[0].value or b""
    identity = json.loads(value)["identity"]
    threshold = f'"threshold":{THRESHOLD}'
    text = value.decode()
    for own in ('"stream":"stream-0"', threshold, identity["incarnation"], identity["digest"]):
        if text.count(own) != 1:
            raise AssertionError(f"a definition no longer has exactly one {own}")
    before, between = text.split('"stream":"stream-0"')
    middle, between = between.split(threshold)
    to_identity, after = between.split(identity["incarnation"])
    to_digest, end = after.split(identity["digest"])
    for number in range(streams):
        minted = hashlib.sha512(str(number).encode()).hexdigest()
        name = f"stream-{number}"
        own = (
            f'{before}"stream":"{name}"{middle}"threshold":{THRESHOLD + number % thresholds}'
            f"{to_identity}{minted[:32]}{to_digest}{minted[32:96]}{end}"
        )
        yield Record(topics.control, 0, number, 0, name.encode(), own.encode())
