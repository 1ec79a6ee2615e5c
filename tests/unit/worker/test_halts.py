"""An ended stream answers no question and gives the reason, whatever ended it."""

from __future__ import annotations

import pytest

from schemas import Amount, HaltStream
from sotto import Refused
from stream.processing.protocol import Outputs, Record
from stream.processing.topic_names import Topics
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, OTHER_KEY, PEOPLE, installation, source
from tests.processing import process_records
from tests.unit.installation import (
    HIGH,
    LOW,
    answers_in,
    changelog,
    charges_in,
    checkpoints_in,
    messages_to,
    query,
    records,
    restarted,
    spec,
    table_store,
    worker_of,
)


def fates(outputs: Outputs, topics: Topics) -> list[tuple[str, int | None]]:
    return [(answer.outcome, answer.index) for answer in answers_in(outputs, topics)]


def test_stream_is_exhausted_after_its_cutoff() -> None:
    driver = installation(spec("alarms", cutoff=2))
    values = [LOW, HIGH, HIGH, HIGH, LOW]
    answers = driver.ask_many(query(str(number), "alarms", value) for number, value in enumerate(values))
    assert [answer.outcome for answer in answers] == ["below", "above", "above", "halted", "halted"]
    assert [answer.index for answer in answers] == [0, 1, 2, None, None]
    assert [answer.tops_left for answer in answers] == [2, 1, 0, 0, 0]
    assert [answer.reason for answer in answers] == [None] * 3 + [
        "exhausted: all 2 'above' answers of the cutoff are out"
    ] * 2
    [later] = driver.ask_many([query("later", "alarms", HIGH)])
    assert (later.outcome, later.reason) == ("halted", answers[-1].reason)
    assert later.spent == answers[2].spent


def test_answer_reports_the_amount_spent_so_far() -> None:
    driver = installation(spec("alarms", cutoff=2))
    answers = driver.ask_many(
        query(str(number), "alarms", value) for number, value in enumerate([LOW, LOW, HIGH, LOW, HIGH])
    )
    spent = [answer.spent.epsilon for answer in answers if answer.spent is not None]
    assert spent[0] == spent[1] < spent[2] == spent[3] < spent[4] == 1.0


@pytest.mark.parametrize("ending", ["halted", "closed"])
def test_ended_stream_answers_nothing_and_gives_the_reason(ending: str) -> None:
    driver = installation(spec("alarms"), spec("others"))
    driver.ask_many([query("a", "alarms", LOW), query("b", "others", LOW)])
    (driver.halt if ending == "halted" else driver.close)("feed", "alarms", reason="end of the study")
    answers = driver.ask_many([query("c", "alarms", HIGH), query("d", "others", HIGH)])
    assert [(answer.outcome, answer.reason) for answer in answers] == [
        ("halted", "end of the study"),
        ("above", None),
    ]
    assert driver.snapshot_streams()["alarms"][:3] == (ending, 1, 0)


def test_stream_ended_before_its_first_answer_has_spent_nothing() -> None:
    driver = installation(spec("alarms"))
    driver.halt("feed", "alarms")
    [answer] = driver.ask_many([query("a", "alarms", LOW)])
    assert answer.outcome == "halted"
    assert answer.spent == Amount(epsilon=0.0, delta=0.0)


def test_halt_of_a_source_halts_all_its_streams_and_no_other() -> None:
    driver = installation(spec("one"), spec("two"), partitions=4)
    driver.register(source("other", epsilon=1.0))
    driver.open(spec("three", "other"))
    driver.halt("feed", reason="consent withdrawn")
    answers = driver.ask_many([query(name, name, LOW) for name in ("one", "two", "three")])
    assert [answer.outcome for answer in answers] == ["halted", "halted", "below"]
    assert answers[0].reason == answers[1].reason == "consent withdrawn"
    assert driver.budget("feed").state == "halted"


def test_halted_stream_may_be_closed_but_not_the_reverse() -> None:
    driver = installation(spec("alarms"))
    driver.halt("feed", "alarms", reason="first")
    driver.close("feed", "alarms", reason="second")
    driver.halt("feed", "alarms", reason="third")
    [answer] = driver.ask_many([query("a", "alarms", LOW)])
    assert (answer.outcome, answer.reason) == ("halted", "second")
    assert driver.snapshot_streams()["alarms"][0] == "closed"
    assert driver.budget("feed").refunded.epsilon == 1.0


def test_ended_stream_reports_its_last_totals_once() -> None:
    driver = installation(spec("alarms"))
    worker = worker_of(driver)
    process_records(worker, records([query("a", "alarms", LOW), query("b", "alarms", LOW)]))
    driver.close("feed", "alarms", reason="done")
    control = driver.records(driver.topics.control)[-1:]
    first, second = worker.apply_lookup_records(control), worker.apply_lookup_records(control)
    [charge] = charges_in(first, driver.topics)
    assert (charge.state, charge.answered, charge.tops, charge.reason) == ("closed", 2, 0, "done")
    assert checkpoints_in(first, driver.topics)["alarms"].state == "closed"
    assert not second


def test_worker_reports_closing_for_its_predecessor() -> None:
    """The worker starts after the stream was closed."""
    driver = installation(spec("alarms"))
    predecessor = worker_of(driver)
    outputs = process_records(predecessor, records([query("a", "alarms", LOW)]))
    driver.close("feed", "alarms")
    successor = restarted(driver, [outputs])
    [charge] = charges_in(successor.apply_lookup_records(()), driver.topics)
    assert (charge.state, charge.answered) == ("closed", 1)


def test_worker_does_not_repeat_its_predecessors_report() -> None:
    driver = installation(spec("alarms", cutoff=1), spec("closed"))
    predecessor = worker_of(driver)
    outputs = [process_records(predecessor, records([query("a", "alarms", HIGH)]))]
    driver.ask_many([query("a", "alarms", HIGH)])
    driver.close("feed", "closed")
    outputs.append(predecessor.apply_lookup_records(driver.records(driver.topics.control)))
    successor = restarted(driver, outputs)
    assert not successor.apply_lookup_records(())
    assert not messages_to(process_records(successor, ()), driver.topics.charges)


def test_repeated_event_halts_its_stream_for_good() -> None:
    driver = installation(spec("alarms"), spec("others"))
    worker = worker_of(driver)
    process_records(
        worker, records([query("a", "alarms", LOW), query("b", "others", LOW), query("c", "alarms", LOW)])
    )
    again = records([query("c", "alarms", LOW), query("d", "others", LOW), query("e", "alarms", LOW)], start=2)
    outputs = process_records(worker, again)
    answers = answers_in(outputs, driver.topics)
    assert [answer.outcome for answer in answers] == ["halted", "below", "halted"]
    assert all((answers[place].reason or "").startswith("replayed: ") for place in (0, 2))
    assert "an offset up to 2" in (answers[0].reason or "")
    [charge] = charges_in(outputs, driver.topics)
    assert (charge.stream, charge.state, charge.answered) == ("alarms", "halted", 2)
    kept = checkpoints_in(outputs, driver.topics)
    assert (kept["alarms"].state, kept["others"].state) == ("halted", "open")
    assert (kept["alarms"].reason or "").startswith("replayed: ")


def test_successor_knows_which_events_were_answered() -> None:
    driver = installation(spec("alarms"), spec("others"))
    predecessor = worker_of(driver)
    batch = records([query("a", "others", LOW), query("b", "alarms", LOW)])
    first = process_records(predecessor, batch)
    successor = restarted(driver, [first])
    assert successor.end_restore() == {driver.topics.queries: 2}
    second = process_records(successor, batch)
    assert fates(second, driver.topics) == [("halted", None), ("halted", None)]
    third = process_records(restarted(driver, [first, second]), records([query("c", "alarms", LOW)], start=9))
    assert fates(third, driver.topics) == [("halted", None)]


def test_checkpoint_of_another_incarnation_is_ignored() -> None:
    earlier, later = installation(spec("alarms")), installation(spec("others"), spec("alarms"))
    predecessor = worker_of(earlier)
    outputs = process_records(predecessor, records([query("a", "alarms", HIGH)]))
    successor = restarted(later, [outputs])
    assert successor.streams.snapshot_streams()["alarms"][:4] == ("open", 0, 0, -1)


def test_stream_without_answers_accepts_any_offset() -> None:
    driver = installation(spec("alarms"), spec("late"))
    worker = worker_of(driver)
    process_records(worker, records([query("a", "alarms", LOW)], start=7))
    assert fates(process_records(worker, records([query("b", "late", LOW)], start=3)), driver.topics) == [
        ("below", 0)
    ]


def test_worker_with_another_key_refuses_and_records_nothing() -> None:
    driver = installation(spec("alarms", cutoff=3))
    stranger = worker_of(driver, key=OTHER_KEY)
    batch = records([query("a", "alarms", HIGH), query("b", "alarms", LOW)])
    refusal = process_records(stranger, batch)
    for answer in answers_in(refusal, driver.topics):
        assert (answer.outcome, answer.index) == ("halted", None)
        assert f"lacks noise key {KEY.key_id}" in (answer.reason or "")
        assert KEY.secret.hex() not in (answer.reason or "")
    assert not charges_in(refusal, driver.topics)
    assert not checkpoints_in(refusal, driver.topics)
    fit = restarted(driver, [refusal])
    later = process_records(fit, records([query("c", "alarms", LOW)], start=2))
    assert fates(later, driver.topics) == [("below", 0)]


def test_worker_with_another_key_still_settles_closed_streams() -> None:
    driver = installation(spec("alarms"))
    predecessor = worker_of(driver)
    outputs = process_records(predecessor, records([query("a", "alarms", LOW)]))
    driver.close("feed", "alarms")
    stranger = QueryProcessor(driver.topics, 0, OTHER_KEY, table_store())
    stranger.restore(driver.records(driver.topics.control))
    stranger.restore(changelog(driver.topics, [outputs]))
    stranger.end_restore()
    [charge] = charges_in(stranger.apply_lookup_records(()), driver.topics)
    assert (charge.state, charge.answered, charge.tops) == ("closed", 1, 0)


def test_stream_is_not_answered_from_data_with_another_fingerprint() -> None:
    driver = installation(sources=[source()])
    driver.register(source("people", "table"), PEOPLE)
    driver.open(spec("people-0", "people", threshold=1000.0))
    other_data = table_store()
    worker = worker_of(driver, tables=other_data)
    batch = records([query("a", "people-0", where="age < 10")])
    [answer] = answers_in(process_records(worker, batch), driver.topics)
    assert answer.outcome == "halted"
    assert (answer.reason or "").startswith("table: ")


def test_unknown_stream_cannot_be_halted() -> None:
    driver = installation(sources=[source()])
    with pytest.raises(Refused, match="stream 'nobody' is not open on source 'feed'"):
        driver.request(HaltStream(request="r", source="feed", stream="nobody"))


def test_unreadable_control_event_stops_its_stream_alone() -> None:
    driver = installation(spec("alarms"), spec("others"))
    worker = worker_of(driver)
    later_version = Record(driver.topics.control, 0, 99, 0, b"alarms", b'{"kind": "suspended"}')
    worker.apply_lookup_records(
        [later_version, later_version._replace(key=b"unheard-of"), later_version._replace(key=b"\xff")]
    )
    outputs = process_records(worker, records([query("a", "alarms", LOW), query("b", "others", LOW)]))
    first, second = answers_in(outputs, driver.topics)
    assert (first.outcome, second.outcome) == ("halted", "below")
    assert "upgrade" in (first.reason or "")
