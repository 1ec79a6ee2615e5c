"""A restore of the budget service collects the latest record of each key in little memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from stream.budget.receipts import MAX_REPLACED_BYTES, CollectedRecords
from stream.privacy.ledger.retirement import NameDigests
from stream.processing.protocol import LaterVersionError, Record
from tests.unit.budget.budget_service import TOPICS, Service, ending, ledger_codec, opening, ready


def collect(service: Service, *records: tuple[bytes, bytes | None]) -> CollectedRecords:
    """Collect the service's ledger and further records, each with its number as offset and timestamp."""
    found = CollectedRecords(TOPICS.ledger, 0, NameDigests())
    found.add(
        Record(TOPICS.ledger, 0, number, number, key, value)
        for number, (key, value) in enumerate((*service.changelog.items(), *records))
    )
    return found


@pytest.mark.parametrize("limit", [0, 2000, MAX_REPLACED_BYTES])
def test_collected_records_are_the_latest_of_each_key(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted records are left out, and a grant's timestamp is that of its last record."""
    monkeypatch.setattr("stream.budget.receipts.BLOCK_BYTES", 2 * limit)
    monkeypatch.setattr("stream.budget.receipts.MAX_REPLACED_BYTES", limit)
    service = ready()
    service.send(*(opening(f"open-{name}", name) for name in ("one", "two", "three")))
    before = dict(service.changelog)
    tricky = '","calibration":{"identity":,"identity":'
    service.send(ending("halt", "halt", "two", reason=tricky), opening("no", "one", epsilon=1e9))
    before |= {key: value for key, value in service.changelog.items() if before.get(key) != value}
    [deleted] = [key for key in before if key.endswith(b"|three")]
    found = collect(ready(), *before.items(), (deleted, None), *service.changelog.items(), (deleted, None))
    expected: dict[str, list[Any]] = {}
    for key, value in service.changelog.items():
        if key != deleted:
            record = ledger_codec.decode(value)
            expected.setdefault(record.kind, []).append(record)
    grants, receipts = list(found.take_grants()), list(found.take_receipts())
    assert [grant for grant, _ in grants] == expected.pop("grant")
    assert grants[1][0].reason == tricky
    assert all(timestamp > len(before) for _, timestamp in grants)
    own = [record for record in expected.pop("receipt") if record.request != "register"]
    assert [receipt for receipt, _ in receipts if receipt.request != "register"] == own
    assert [ledger_codec.decode(value) for _, value in receipts] == [receipt for receipt, _ in receipts]
    others = [content for _, content in found.take_others()]
    assert all(content in others for content in (*expected["source"], *expected["progress"]))


def test_collected_grant_takes_at_most_1_kb() -> None:
    """The topic's record has 1.1 kB, and a consumer's record 0.5 kB more."""
    service = ready()
    service.send(opening("open", "one"))
    [(key, value)] = [(key, value) for key, value in service.changelog.items() if key.startswith(b"grant|")]
    found, count = CollectedRecords(TOPICS.ledger, 0, NameDigests()), 5_000
    tracemalloc.start()
    for number in range(count):
        copy = value.replace(b'"stream":"one"', b'"stream":"s%d"' % number)
        found.add([Record(TOPICS.ledger, 0, number, 0, key + b"%d" % number, copy)])
    size = tracemalloc.get_traced_memory()[0] + sum(map(len, found._grants._blocks))
    tracemalloc.stop()
    assert len({grant.spec.stream for grant, _ in found.take_grants()}) == count
    assert size < 1_000 * count


@pytest.mark.parametrize("value", [b'{"kind":"grant"}', b'"calibration":{,"identity":', b""])
def test_unreadable_grant_is_named_by_its_offset(value: bytes) -> None:
    service = ready()
    found = collect(service, (b"grant|feed|later", value))
    with pytest.raises(LaterVersionError, match=f"offset {len(service.changelog)}:"):
        list(found.take_grants())
