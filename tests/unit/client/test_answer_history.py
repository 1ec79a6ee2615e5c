"""Pages of one stream's answers, read backwards from the log that it shares with other streams."""

from __future__ import annotations

import json

import pytest

from stream.client import answer_history
from stream.client.answer_history import MAX_PAGE_BYTES, AnswerLog, AnswerPage
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics
from stream.settings import Settings
from tests.unit.monitor.answer_logs import InMemoryConsumer

TOPICS = Topics("sotto", 1)


def answer(offset: int, stream: str, *, padding: int = 0, **fields: object) -> Record:
    document = {"id": str(offset), "stream": stream, "outcome": "below", "reason": None, **fields}
    value = json.dumps({name: one for name, one in document.items() if one is not None}).encode()
    return Record(TOPICS.answers, 0, offset, offset * 1000, stream.encode(), value + b" " * padding)


def log(records: list[Record]) -> tuple[AnswerLog, InMemoryConsumer]:
    consumer = InMemoryConsumer(TOPICS.answers, lambda: records)
    return AnswerLog(Settings(), TOPICS, consumer), consumer


def ids(page: AnswerPage) -> list[int]:
    return [int(one.result.id) for one in page.answers]


async def test_answer_log_pages_back_through_all_answers_of_a_stream() -> None:
    """Each answer is on one page, newest first, regardless of other streams' answers between them."""
    mine = {number for number in range(3_000) if number % 7 == 0 or 1_000 < number < 1_100}
    reading, _ = log([answer(number, "mine" if number in mine else "other") for number in range(3_000)])
    found: list[int] = []
    before, pages = None, 0
    while True:
        page = await reading.read_page("mine", 50, before=before)
        found += ids(page)
        pages += 1
        assert len(page.answers) == 50 or page.before is None
        if (before := page.before) is None:
            break
    assert found == sorted(mine, reverse=True)
    assert pages == -(-len(mine) // 50)
    assert [int(one.id) for one in await reading.read_all("mine")] == sorted(mine)


async def test_answer_page_is_bounded_in_bytes_and_continued_by_next_page() -> None:
    """A page of a quiet stream reads a bounded part of the other streams' answers."""
    records = [answer(number, "mine" if number == 0 else "other", padding=10_000) for number in range(2_000)]
    reading, consumer = log(records)
    first = await reading.read_page("mine", 50)
    assert (first.answers, first.before is None) == ([], False)
    assert consumer.fetched < 2 * MAX_PAGE_BYTES
    assert first.oldest_read == first.before
    found: list[int] = []
    before, pages = first.before, 1
    while before is not None:
        page = await reading.read_page("mine", 50, before=before)
        found, before, pages = [*found, *ids(page)], page.before, pages + 1
    assert found == [0]
    assert pages <= 2 + sum(len(one.value or b"") for one in records) // MAX_PAGE_BYTES


async def test_answer_page_reads_an_answer_larger_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paging also gets past answers that are larger than the bytes of a page."""
    monkeypatch.setattr(answer_history, "MAX_PAGE_BYTES", 3_000)
    reading, _ = log([answer(number, "mine", padding=2_000 * (1 + number % 2)) for number in range(5)])
    found: list[int] = []
    sizes: list[int] = []
    before = None
    while True:
        page = await reading.read_page("mine", 50, before=before)
        found, sizes = [*found, *ids(page)], [*sizes, len(page.answers)]
        if (before := page.before) is None:
            break
    assert found == [4, 3, 2, 1, 0]
    assert max(sizes) <= 2


async def test_answer_page_begins_before_a_time_and_ends_at_the_opening() -> None:
    """``until`` skips newer answers; nothing before ``since``, less the clocks' skew, is read."""
    reading, consumer = log([answer(number, "mine" if number > 5_000 else "other") for number in range(9_000)])
    page = await reading.read_page("mine", 2, until=6_000.0)
    assert ids(page) == [5_999, 5_998]
    assert page.preceding is not None
    assert page.preceding.offset == 5_997
    consumer.fetched = 0
    page = await reading.read_page("mine", 500, until=5_100.0, since=5_000.0)
    assert ids(page) == list(range(5_099, 5_000, -1))
    assert page.before is None
    assert page.oldest_read == 5_000.0 - answer_history._CLOCK_SKEW_SECONDS


async def test_answer_page_leaves_out_and_counts_unreadable_answers() -> None:
    """A record that is no answer does not hide other answers."""
    forged = Record(TOPICS.answers, 0, 1, 1000, b"mine", b"{}")
    reading, _ = log([answer(0, "mine"), forged, answer(2, "mine")])
    page = await reading.read_page("mine", 10)
    assert (ids(page), page.unreadable, page.before) == ([2, 0], 1, None)
