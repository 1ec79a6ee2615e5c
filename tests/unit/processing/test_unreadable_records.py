"""Unreadable records are refused in order; the memory for dead letters and keys is bounded."""

from __future__ import annotations

import json
from random import Random

import pytest
from aiokafka.partitioner import murmur2
from blake3 import blake3

from stream.processing import topic_names as topics_module
from stream.processing.dead_letters import (
    INVALID_HEADER_NAME,
    MAX_HEADERS,
    MAX_KEPT_HEADERS,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    MAX_WHOLE_BYTES,
    OVERSIZED_BATCH,
    Rejection,
    UnreadableBatch,
    UnreadableValue,
    dead_letter,
)
from stream.processing.protocol import Record
from stream.processing.topic_names import MAX_NAME_BYTES, partition_of
from tests.builders import installation
from tests.processing import process_records
from tests.unit.budget.budget_service import TOPICS, Service, register
from tests.unit.installation import answers_in, messages_to, query, spec, worker_of

REFUSED = Rejection("too-large", "event: too large")
BATCH = UnreadableValue(b"\0\0beginning", OVERSIZED_BATCH, UnreadableBatch(2, 7, "zstd", 12_000, "ab" * 32))


def facts(headers: object) -> dict[str, str]:
    listed: list[tuple[str, bytes]] = list(headers)  # type: ignore[call-overload]
    return {
        name.removeprefix("__connect.errors."): value.decode() for name, value in listed if name.startswith("__")
    }


def test_unreadable_batch_is_one_dead_letter_behind_the_progress() -> None:
    driver = installation(spec("feed-0"))
    processor = worker_of(driver)
    queries, stream = driver.topics.queries, b"feed-0"
    outputs = process_records(
        processor,
        [
            Record(queries, 0, 1, 0, stream, query("one", "feed-0", 1.0)),
            Record(queries, 0, 7, 0, None, BATCH),
            Record(queries, 0, 8, 0, stream, query("two", "feed-0", 1.0)),
            Record(
                queries,
                0,
                9,
                0,
                stream,
                UnreadableValue(query("three", "feed-0", 1.0), INVALID_HEADER_NAME),
                (("\\xff", b""),),
            ),
        ],
    )
    assert [(one.id, one.outcome) for one in answers_in(outputs, driver.topics)] == [
        ("one", "below"),
        ("two", "below"),
        ("three", "rejected"),
    ]
    batch, single = messages_to(outputs, driver.topics.rejected)
    assert batch[1] == b"\0\0beginning"
    assert type(batch[1]) is bytes
    details = facts(batch[2])
    assert (details["offset"], details["last.offset"], details["length"], details["codec"]) == (
        "2",
        "7",
        "12000",
        "zstd",
    )
    assert details["digest"] == "ab" * 32
    assert single[1] == query("three", "feed-0", 1.0)
    [*_, (_, progress, _)] = messages_to(outputs, driver.topics.state)
    assert json.loads(progress or b"")["offset"] == 10


def test_budget_service_refuses_unreadable_requests_and_continues() -> None:
    service = Service()
    outputs = service.send(BATCH, register(), UnreadableValue(register("other"), INVALID_HEADER_NAME))
    assert [facts(headers)["exception.class.name"] for _, _, headers in messages_to(outputs, TOPICS.rejected)] == [
        "unreadable",
        "unreadable",
    ]
    assert b"receipt|register" in service.changelog
    assert b"receipt|other" not in service.changelog


def test_dead_letter_is_whole_up_to_the_limit_of_a_message() -> None:
    value = Random(1).randbytes(MAX_WHOLE_BYTES - 100)
    key, written_value, headers = dead_letter(
        Record("queries", 0, 5, 0, b"k" * 50, value, (("n", b"v"),)), REFUSED
    )
    assert (key, written_value, headers[0]) == (b"k" * 50, value, ("n", b"v"))
    assert facts(headers).keys() == {
        "topic",
        "partition",
        "offset",
        "exception.class.name",
        "exception.message",
    }


@pytest.mark.parametrize(
    "record",
    [
        Record("queries", 0, 5, 0, b"key", bytes(4 * 1024 * 1024)),
        Record("queries", 0, 5, 0, bytes(4 * 1024 * 1024), b"value"),
        Record("queries", 0, 5, 0, bytes(4 * 1024 * 1024), None),
        Record("queries", 0, 5, 0, b"key", b"value", (("n", bytes(4 * 1024 * 1024)),)),
        Record("queries", 0, 5, 0, b"key", b"value", ((2 * 1024 * 1024 * "ü", b""),)),
        Record("queries", 0, 5, 0, b"key", b"value", (("n", bytes(50_000)),) * MAX_HEADERS),
    ],
)
def test_oversize_dead_letter_is_cut_with_length_and_digest(record: Record) -> None:
    key, value, headers = dead_letter(record, REFUSED)
    size = len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(given) for name, given in headers)
    assert size < MAX_KEY_BYTES + MAX_VALUE_BYTES + 32 * 1024
    details = facts(headers)
    if record.value is None:
        assert value is None
        assert "length" not in details
    else:
        assert record.value.startswith(value or b"-")
        assert (details["length"], details["digest"]) == (f"{len(record.value)}", blake3(record.value).hexdigest())
    assert (details["key.length"], details["header.count"]) == (
        f"{len(record.key or b'')}",
        f"{len(record.headers)}",
    )


def test_dead_letter_headers_are_limited_to_the_readers_maximum() -> None:
    own = tuple((f"n{number}", b"v") for number in range(MAX_HEADERS))
    _, _, headers = dead_letter(Record("queries", 0, 5, 0, b"key", b"value", own), REFUSED)
    assert len(headers) <= MAX_HEADERS
    assert [*headers[:MAX_KEPT_HEADERS]] == [*own[:MAX_KEPT_HEADERS]]
    assert facts(headers)["header.count"] == f"{MAX_HEADERS}"


def test_key_longer_than_a_name_is_neither_hashed_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def noting(key: bytes) -> int:
        hashed.append(len(key))
        return int(murmur2(key))

    monkeypatch.setattr(topics_module, "murmur2", noting)
    topics_module._cached_partition.cache_clear()
    service = Service()
    long = [
        Record(TOPICS.requests, 0, number, 0, b"%d" % number + bytes(1_000_000), b"{}") for number in range(30)
    ]
    outputs = process_records(service.processor, long)
    assert len(messages_to(outputs, TOPICS.rejected)) == 30
    assert all(length <= MAX_NAME_BYTES for length in hashed)
    assert partition_of(b"n" * MAX_NAME_BYTES, 7) == (int(murmur2(b"n" * MAX_NAME_BYTES)) & 0x7FFFFFFF) % 7
    assert partition_of(b"n" * (MAX_NAME_BYTES + 1), 7) == 0
