"""Delivery never changes an answer: the same event at the same place has the same noise, and any other event has different noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver, Refused
from stream.privacy.mechanisms.above_threshold import query_sampler
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import Geometric
from tests.privacy.chance import happens
from tests.privacy.service import KEY, Derived, definition_of, feed, stream

QUERIES = 4000


def mixed_session(key: NoiseKey = KEY) -> Driver:
    """Return an installation with streams of one and of many ⊤s, with one threshold and with fresh thresholds."""
    driver = Driver(key, partitions=2)
    driver.register(feed())
    driver.open(stream("once", 1))
    driver.open(stream("often", 12, epsilon=12.0))
    driver.open(stream("textbook", 12, epsilon=24.0, calibration="textbook"))
    return driver


def mixed_batch(part: int) -> list[bytes | dict[str, Any]]:
    """Return events with all kinds of answers: near the threshold, on streams that are exhausted, and refusals."""
    queries: list[bytes | dict[str, Any]] = [
        {"id": f"{part}.{i}", "stream": name, "value": float(i % 16 - 6)}
        for i in range(40)
        for name in ("once", "often", "textbook")
    ]
    queries.insert(7, b'{"id": "x", "stream": "often", "value": "12"}')
    queries.insert(70, b'{"id": "y", "stream": "nobody", "value": 1}')
    return queries


def test_redelivered_batch_gives_the_same_bytes_on_every_topic() -> None:
    driver = mixed_session()
    seen: set[str] = set()
    for part in range(3):
        answers = driver.ask_many(mixed_batch(part))
        assert driver.redeliver() == answers
        assert driver.redeliver() == answers
        seen |= {answer.outcome for answer in answers}
    assert seen == {"above", "below", "halted", "rejected"}


def test_crash_at_any_point_changes_no_figure_and_no_later_answer() -> None:
    steady, crashing = mixed_session(), mixed_session()
    for part in range(3):
        for query in mixed_batch(part)[:60]:
            assert crashing.ask_many([query]) == steady.ask_many([query])
            before = crashing.snapshot_streams()
            crashing.crash()
            assert crashing.snapshot_streams() == before == steady.snapshot_streams()


def test_batches_change_no_answer_and_no_rejection() -> None:
    together, apart = mixed_session(), mixed_session()
    batch = mixed_batch(0)
    assert together.ask_many(batch) == [answer for query in batch for answer in apart.ask_many([query])]


def test_streams_of_equal_definitions_have_independent_noise() -> None:
    driver = Driver(KEY)
    driver.register(feed())
    names = [f"stream-{number}" for number in range(40)]
    for name in names:
        driver.open(stream(name, 1))
    derived = [Derived(KEY, definition_of(driver, name)) for name in names]
    assert len({one.definition.calibration for one in derived}) == 1
    assert len({one.definition.identity.incarnation for one in derived}) == len(names)
    # If the draws were one draw, all forty answers would be equal; forty independent draws are practically never equal.
    assert len({one.barrier(0) for one in derived}) > 5


def test_name_is_never_used_for_a_second_stream() -> None:
    driver = mixed_session()
    for end in (driver.close, driver.halt):
        name = {"close": "once", "halt": "often"}[end.__name__]
        end("feed", name)
        with pytest.raises(Refused, match="used before"):
            driver.open(stream(name, 1))
        driver.crash()
        with pytest.raises(Refused, match="used before"):
            driver.open(stream(name, 1))


class CoinStream:
    """A long stream whose answers are ⊤ or ⊥ with about equal probability, given its threshold noise."""

    def __init__(self, prefix: str, key: NoiseKey = KEY) -> None:
        self.driver = Driver(key, partitions=1)
        self.driver.register(feed())
        self.driver.open(stream("coin", 2 * QUERIES, epsilon=1000.0, expected_queries=QUERIES))
        self.derived = Derived(key, definition_of(self.driver, "coin"))
        law = query_sampler(self.derived.calibration)
        assert isinstance(law, Geometric)
        height = round(math.log(2) / float(law.rate))
        self.chance = math.exp(-float(law.rate) * height)
        value = float(self.derived.barrier(0) - height)
        self.answers = self.driver.ask_many(
            {"id": f"{prefix}{i}", "stream": "coin", "value": value} for i in range(QUERIES)
        )


def tops(answers: Sequence[Answer]) -> list[bool]:
    return [answer.outcome == "above" for answer in answers]


@pytest.fixture(scope="module")
def coin() -> CoinStream:
    return CoinStream("a")


def test_equal_values_have_independent_noise(coin: CoinStream) -> None:
    seen = tops(coin.answers)
    assert happens(sum(seen), QUERIES, coin.chance)
    repeats = sum(one == other for one, other in zip(seen[::2], seen[1::2], strict=True))
    assert happens(repeats, QUERIES // 2, coin.chance**2 + (1 - coin.chance) ** 2)


def test_other_bytes_at_the_same_positions_have_independent_noise(coin: CoinStream) -> None:
    other = CoinStream("b")
    assert other.derived.barrier(0) == coin.derived.barrier(0)
    agreements = sum(one == two for one, two in zip(tops(coin.answers), tops(other.answers), strict=True))
    assert happens(agreements, QUERIES, coin.chance**2 + (1 - coin.chance) ** 2)


def test_same_bytes_at_the_same_positions_have_the_same_noise(coin: CoinStream) -> None:
    assert CoinStream("a").answers == coin.answers


def test_everything_is_independent_under_another_key(coin: CoinStream) -> None:
    other = CoinStream("a", NoiseKey(bytes(32)))
    agreements = sum(one == two for one, two in zip(tops(coin.answers), tops(other.answers), strict=True))
    assert happens(agreements, QUERIES, coin.chance * other.chance + (1 - coin.chance) * (1 - other.chance))


def test_events_before_a_streams_last_offset_are_not_answered_again() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(feed())
    driver.open(stream("once", 1))
    driver.ask_many(
        [{"id": "1", "stream": "once", "value": -1000.0}, {"id": "2", "stream": "once", "value": -1000.0}]
    )
    # The topic is created again, so its offsets begin at 0 again, with other data.
    driver._logs[driver.topics.queries, 0].clear()
    driver._positions[driver.topics.queries, 0] = 0
    again = driver.ask_many([{"id": "3", "stream": "once", "value": 1000.0}])
    assert [answer.outcome for answer in again] == ["halted"]
    assert "repeated an offset" in (again[0].reason or "")
    driver.crash()
    assert driver.ask_many([{"id": "4", "stream": "once", "value": 1000.0}])[0].outcome == "halted"
