"""After a change of noise keys, given answers stay the same, and no stream answers with another key than at its opening."""

from __future__ import annotations

from typing import Any

from schemas import Answer
from sotto import Driver
from stream.privacy.noise.keys import NoiseKey
from tests.builders import KEY, OTHER_KEY, installation, source, stream
from tests.unit.installation import worker_of

SECOND = NoiseKey(bytes(range(1, 33)), (KEY,))
TABLE = source(
    "people",
    "table",
    path="in memory",
    epsilon=50.0,
    attributes={"age": {"kind": "integers", "minimum": 0, "maximum": 99}},
)
ROWS = {"age": [age % 100 for age in range(1000)]}
FEED = source(epsilon=50.0)


def before_rotation() -> Driver:
    """Return an installation with a stream on each source."""
    return installation(histogram("old"), laplace("old-feed"), sources=[TABLE, FEED], rows={"people": ROWS})


def histogram(name: str) -> dict[str, Any]:
    mechanism = {"kind": "histogram", "attributes": ["age"]}
    return stream(name, "people", mechanism=mechanism)


def laplace(name: str) -> dict[str, Any]:
    return stream(name, "feed", "laplace", mechanism={"answers": 40}, epsilon=4.0)


def ask(driver: Driver, stream: str, **question: Any) -> Answer:
    [answer] = driver.ask_many([{"id": "1", "stream": stream, **question}])
    return answer


def test_release_is_the_same_after_a_key_rotation() -> None:
    driver = before_rotation()
    before = ask(driver, "old", where="age < 50")
    driver.restart(SECOND)
    after = ask(driver, "old", where="age < 50")
    assert (after.estimate, after.spent) == (before.estimate, before.spent)


def test_open_stream_keeps_its_noise_after_a_key_rotation() -> None:
    rotated, kept = before_rotation(), before_rotation()
    for driver in (rotated, kept):
        ask(driver, "old-feed", value=5.0)
    rotated.restart(SECOND)
    numbers = [(ask(driver, "old-feed", value=7.0).estimate) for driver in (rotated, kept)]
    assert numbers[0] == numbers[1]


def test_new_streams_are_opened_under_the_present_key() -> None:
    driver = before_rotation()
    driver.restart(SECOND)
    driver.open(histogram("new"))
    control = driver.records(driver.topics.control)
    assert SECOND.key_id.encode() in (control[-1].value or b"")
    assert ask(driver, "new", where="age < 50").estimate != ask(driver, "old", where="age < 50").estimate


def test_table_fingerprint_under_an_older_key_is_recognized() -> None:
    """The table can also be registered again."""
    driver = before_rotation()
    driver.restart(SECOND)
    assert driver.register(TABLE, ROWS).outcome == "registered"
    driver.open(histogram("new"))
    assert ask(driver, "new", where="age < 50").outcome == "answer"


def test_missing_key_stops_only_the_streams_that_need_it() -> None:
    driver = before_rotation()
    driver.restart(SECOND)
    driver.open(laplace("new-feed"))
    driver.restart(NoiseKey(SECOND.secret))
    assert ask(driver, "new-feed", value=1.0).outcome == "answer"
    stopped = ask(driver, "old-feed", value=1.0)
    assert stopped.outcome == "halted"
    assert stopped.estimate is None
    assert f"lacks noise key {KEY.key_id}" in (stopped.reason or "")
    driver.restart(SECOND)
    assert ask(driver, "old-feed", value=1.0).outcome == "answer"


def test_worker_counts_the_open_streams_that_it_refuses() -> None:
    """The counts are by reason, such as a missing noise key."""
    driver = before_rotation()
    driver.restart(SECOND)
    driver.open(laplace("new-feed"))
    lacking = worker_of(driver, key=NoiseKey(SECOND.secret), tables=driver._tables)
    lack = f"this worker lacks noise key {KEY.key_id}; give it that key"
    assert lacking.refusals() == {lack: 2}
    driver.halt("feed", "old-feed")
    lacking.apply_lookup_records(driver.records(driver.topics.control)[-1:])
    assert lacking.refusals() == {lack: 1}
    assert worker_of(driver, key=SECOND, tables=driver._tables).refusals() == {}


def test_worker_with_an_unknown_key_answers_nothing() -> None:
    driver = before_rotation()
    driver.restart(OTHER_KEY)
    for name, question in (("old", {"where": "age < 50"}), ("old-feed", {"value": 1.0})):
        assert ask(driver, name, **question).outcome == "halted"
