"""An extended stream continues with all its measurements, in any order of events, and costs what was granted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from schemas import Answer, ExtendStream, GrantRecord, StreamOpened
from sotto import Driver, Refused
from stream.budget import receipts
from stream.budget.trail_verification import TrailCheck
from stream.privacy.composition.costs import charged_answers
from stream.privacy.planning.promises import promises
from stream.processing.protocol import Record
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, installation, source, stream
from tests.processing import process_records
from tests.unit.budget.budget_service import ledger_codec
from tests.unit.installation import HIGH, LOW, messages_to, query, spec, table_store
from tests.unit.mechanisms import KINDS, Kind, driver_with

CHARGED = [
    kind
    for kind in KINDS
    if kind.mechanism["kind"]
    not in {"randomized_response", "histogram", "sparse_project", "lazy_histogram", "unknown_groups"}
]
ONCE = [kind for kind in KINDS if kind not in CHARGED and kind.mechanism["kind"] != "unknown_groups"]
FEW = {"cutoff": 1, "answers": 2, "updates": 1}
"""So few charged answers that the questions of one kind exhaust the stream."""


def ask_questions(driver: Driver, questions: Sequence[dict[str, Any]], prefix: str) -> list[Answer]:
    return list(
        driver.ask_many([{"id": f"{prefix}{place}", "stream": "s", **one} for place, one in enumerate(questions)])
    )


def dry(kind: Kind) -> tuple[Driver, list[Answer]]:
    """Return an installation with a stream of this kind and few charged answers, and its answers until it is exhausted."""
    fields = {name: FEW.get(name, value) for name, value in kind.mechanism.items()}
    if "threshold" in fields:
        fields["threshold"] = 5.0 if kind.source == "people" else 20.0
    changes: dict[str, Any] = {}
    if "attributes" in fields:
        # On so small a table, only a large error shows that an estimate is wrong.
        fields |= {"warm_start": 0, "beyond": "end"} if fields["kind"] == "pmw" else {"gap": 0.02}
        changes["epsilon"] = 300.0
    driver = driver_with(kind, mechanism=fields, **changes)
    answers: list[Answer] = []
    for turn in range(40):
        answers += ask_questions(driver, kind.questions, f"{turn}-")
        if answers[-1].outcome == "halted":
            return driver, answers
    raise AssertionError("the questions do not use it up")


def price(grant: GrantRecord) -> float:
    """Return the ε of some charged answers; sources can pay twice as much."""
    return round(min(3.0 * grant.spec.epsilon, 300.0), 6)


@pytest.mark.parametrize("kind", CHARGED, ids=lambda kind: kind.name)
def test_exhausted_stream_continues_after_an_extension(kind: Kind) -> None:
    driver, before = dry(kind)
    grant = driver.grant(kind.source, "s")
    assert grant.state == "exhausted"
    left = driver.budget(kind.source).left.epsilon
    receipt = driver.extend(kind.source, "s", price(grant))
    extended = driver.grant(kind.source, "s")
    assert receipt.outcome == "opened"
    assert receipt.answers is not None
    assert receipt.granted is not None
    assert extended.state == "open"
    assert extended.cost.epsilon == pytest.approx(grant.cost.epsilon + receipt.granted.epsilon)
    assert receipt.granted.epsilon <= price(grant)
    assert driver.budget(kind.source).left.epsilon == pytest.approx(left - receipt.granted.epsilon)
    after = ask_questions(driver, kind.questions, "later")
    given = [one for one in before + after if one.index is not None]
    assert [one.index for one in given] == list(range(len(given)))
    assert after[0].outcome != "halted"
    assert after[0].spent is not None
    assert before[-1].spent is not None
    assert after[0].spent.epsilon >= before[-1].spent.epsilon
    assert all(one.spent is None or one.spent.epsilon <= extended.cost.epsilon + 1e-12 for one in after)
    if after[-1].outcome == "halted":
        assert after[-1].reason is not None
        assert str(charged_answers(extended.calibration, extended.extensions)) in after[-1].reason


@pytest.mark.parametrize("expected", [2, 3, 1000])
def test_extension_of_laplace_states_the_probability_for_all_answers(expected: int) -> None:
    """Unless the promise covers fewer answers than the opening pays for: then an extension does not change it."""
    driver = installation(stream("s", mechanism={"kind": "laplace", "answers": 3}, expected_queries=expected))
    driver.extend("feed", "s", 1.0)
    grant = driver.grant("feed", "s")
    [promise] = promises(grant.spec, grant.calibration, grant.extensions)
    told = "for its first 3 charged answers, with probability 0.9 for all 6" in str(promise)
    assert told is (expected > 2)


@pytest.mark.parametrize("kind", CHARGED, ids=lambda kind: kind.name)
def test_extended_stream_is_the_same_after_restart_and_redelivery(kind: Kind) -> None:
    driver, _ = dry(kind)
    driver.extend(kind.source, "s", price(driver.grant(kind.source, "s")))
    first = ask_questions(driver, kind.questions, "a")
    before = driver.snapshot_streams()
    driver.crash()
    assert driver.snapshot_streams() == before
    driver.extend(kind.source, "s", price(driver.grant(kind.source, "s")))
    driver.crash()
    second = ask_questions(driver, kind.questions, "b")
    assert driver.redeliver() == second
    last = [one.tops_left for one in first if one.tops_left is not None][-1]
    assert second[0].tops_left is not None
    assert second[0].tops_left > last or second[0].tops_left >= last - 1


@pytest.mark.parametrize("kind", CHARGED, ids=lambda kind: kind.name)
def test_closing_refunds_the_unspent_amount_of_all_extensions(kind: Kind) -> None:
    """The refund covers the opening and all extensions, exactly."""
    driver, _ = dry(kind)
    for _ in range(2):
        driver.extend(kind.source, "s", price(driver.grant(kind.source, "s")))
    ask_questions(driver, kind.questions[:1], "late")
    driver.close(kind.source, "s")
    grant, source = driver.grant(kind.source, "s"), driver.budget(kind.source)
    assert grant.state == "closed"
    assert grant.refunded.epsilon == pytest.approx(grant.cost.epsilon - grant.spent.epsilon, abs=1e-12)
    assert source.granted.epsilon - source.refunded.epsilon == pytest.approx(source.spent.epsilon, abs=1e-12)
    assert len(grant.extensions) == 2


@pytest.mark.parametrize("kind", ONCE, ids=lambda kind: kind.name)
def test_extension_of_a_stream_charged_once_is_refused_with_remedy(kind: Kind) -> None:
    driver = driver_with(kind)
    with pytest.raises(Refused, match=r"is charged once .*, so it cannot be extended; open another stream"):
        driver.extend(kind.source, "s", 1.0)
    assert driver.grant(kind.source, "s").extensions == ()


def test_extension_of_unknown_groups_is_refused_with_the_remedy() -> None:
    driver = driver_with(kind := next(kind for kind in KINDS if kind.name == "unknown_groups"))
    with pytest.raises(Refused, match=r"has a δ for each answer, .*; none can be added, open another stream"):
        driver.extend(kind.source, "s", 1.0)
    assert driver.grant(kind.source, "s").extensions == ()


@pytest.mark.parametrize("beyond", ["end", "unpromised"])
def test_extended_pmw_keeps_all_its_measurements(beyond: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == "pmw")
    mechanism = {**kind.mechanism, "updates": 1, "warm_start": 0, "beyond": beyond}
    driver = driver_with(kind, mechanism=mechanism, epsilon=500.0)
    before = ask_questions(driver, kind.questions, "a")
    assert driver.grant("people", "s").tops == 1
    top = next(place for place, one in enumerate(before) if one.outcome == "above" or one.basis == "noisy")
    known = {place: one for place, one in enumerate(before) if place > top and one.basis == "measured"}
    assert beyond == "end" or known
    if beyond == "unpromised":
        assert {one.alpha for one in before if one.basis == "hypothesis" and one.tops_left == 0} <= {None}
    else:
        assert before[-1].outcome == "halted"
    driver.extend("people", "s", 400.0)
    driver.crash()
    after = ask_questions(driver, kind.questions, "b")
    assert after[0].tops_left is not None
    # Measured numbers are answered as before, and answers without a promise have one again.
    for place, one in known.items():
        assert (after[place].basis, after[place].estimate, after[place].alpha) == (
            "measured",
            one.estimate,
            one.alpha,
        )
    assert all(one.alpha is not None for one in after if one.outcome != "halted" and one.tops_left)


def test_time_of_an_extension_changes_no_answer() -> None:
    """A running stream answers as if it had been extended at any other time."""
    asked_of: list[list[Answer]] = []
    for moment in (0, 3, 6):
        driver = installation(spec("s", cutoff=3))
        answers: list[Answer] = []
        for place in range(8):
            if place == moment:
                driver.extend("feed", "s", 1.0)
            answers += driver.ask_many([query(f"q{place}", "s", HIGH if place % 3 else LOW)])
        asked_of.append(answers)
    seen = [[(one.id, one.outcome, one.index, one.spent) for one in answers] for answers in asked_of]
    assert seen[0] == seen[1]
    assert [one for one in seen[2] if one[1] != "halted"][:5] == seen[0][:5]


def test_repeated_extension_request_extends_once() -> None:
    """Another request under its id is refused."""
    driver = installation(spec("s", cutoff=3))
    request = ExtendStream(request="more", source="feed", stream="s", epsilon=1.0)
    first = driver.request(request)
    left = driver.budget("feed").left
    driver.crash()
    assert driver.request(request) == first
    assert driver.budget("feed").left == left
    with pytest.raises(Refused, match="this id belongs to an earlier request with other content"):
        driver.request(request.model_copy(update={"epsilon": 2.0}))
    assert len(driver.grant("feed", "s").extensions) == 1


def test_repeated_extension_extends_once_without_its_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 1)
    driver = installation(spec("s", cutoff=3))
    request = ExtendStream(request="more", source="feed", stream="s", epsilon=1.0)
    first = driver.request(request)
    driver.extend("feed", "s", 1.0)
    left = driver.budget("feed").left
    again = driver.request(request)
    assert (again.outcome, again.answers, again.granted) == (first.outcome, first.answers, first.granted)
    assert driver.budget("feed").left == left
    assert len(driver.grant("feed", "s").extensions) == 2


def test_repeated_extension_does_not_reopen_an_ended_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 1)
    driver = installation(spec("s", cutoff=3))
    request = ExtendStream(request="more", source="feed", stream="s", epsilon=1.0)
    first = driver.request(request)
    driver.close("feed", "s")
    again = driver.request(request)
    assert (again.outcome, again.answers) == (first.outcome, first.answers)
    assert driver.grant("feed", "s").ending == "closed"
    check = TrailCheck()
    for record in driver.records(driver.topics.trail):
        check.add_entry(record.value)
    last = {record.key: record.value for record in driver.records(driver.topics.ledger)}
    events = [ledger_codec.decode(value) for value in last.values() if value is not None]
    assert [*check.findings(), *check.compare_ledger(events)] == []


def test_extension_beyond_the_source_budget_is_refused_whole() -> None:
    driver = installation(spec("s", cutoff=3, epsilon=4.0))
    before = driver.budget("feed"), driver.grant("feed", "s"), driver.snapshot_streams()
    with pytest.raises(Refused, match=r"cannot pay: ε = .* asked, ε = 6 left") as refused:
        driver.extend("feed", "s", 9.0)
    assert refused.value.asked is not None
    assert refused.value.left is not None
    assert refused.value.asked.epsilon <= 9.0
    with pytest.raises(Refused, match="pays for no further charged answer"):
        driver.extend("feed", "s", 1e-3)
    with pytest.raises(Refused, match="not open on source"):
        driver.request(ExtendStream(request="x", source="feed", stream="nobody", epsilon=1.0))
    assert (driver.budget("feed"), driver.grant("feed", "s"), driver.snapshot_streams()) == before
    assert driver.ask_many([query("a", "s", HIGH)])[0].tops_left == 2


@pytest.mark.parametrize("ended", ["halt", "close", "halt source", "halt after it has run dry"])
def test_stream_that_is_ending_is_not_extended(ended: str) -> None:
    driver = installation(spec("s"))
    if ended == "halt after it has run dry":
        driver.ask_many([query("a", "s", HIGH)])
    if ended == "halt source":
        driver.halt("feed")
    elif ended == "close":
        driver.close("feed", "s")
    else:
        driver.halt("feed", "s")
    with pytest.raises(Refused, match=r"cannot be extended; open another stream|source 'feed' is halted"):
        driver.extend("feed", "s", 1.0)
    assert driver.ask_many([query("b", "s", HIGH)])[0].outcome == "halted"


def control(driver: Driver) -> list[Record]:
    return driver.records(driver.topics.control)


@pytest.fixture
def control_of_an_extension() -> list[Record]:
    """Return the control events of a stream's opening, of its halt after its exhaustion, and of its extension."""
    driver = installation(spec("s"))
    driver.ask_many([query("a", "s", HIGH)])
    driver.extend("feed", "s", 1.0)
    return control(driver)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2), (2,), (1, 2)])
@pytest.mark.parametrize("way", ["one batch", "batches", "restore", "idle between"])
def test_extension_counts_in_any_order_of_control(
    control_of_an_extension: list[Record], order: tuple[int, ...], way: str
) -> None:
    worker = QueryProcessor(installation(sources=[source()]).topics, 0, KEY, table_store())
    events = [control_of_an_extension[place]._replace(offset=number) for number, place in enumerate(order)]
    if way == "restore":
        worker.restore(events)
        worker.end_restore()
    elif way == "one batch":
        worker.apply_lookup_records(events)
    else:
        # A halt before the worker reads the extension is final for a stream that is not exhausted.
        events = [
            event
            for event in events
            if way != "idle between" or event.key is None or event.value != control_of_an_extension[1].value
        ]
        for event in events:
            worker.apply_lookup_records([event]) if way == "idle between" else worker._control.apply_events(
                [event]
            )
    process_records(worker, [])
    slot = worker.streams.slots["s"]
    assert worker.streams.answers_left(slot) == 2
    assert worker.streams.snapshot_streams()["s"][0] == "open"


def test_worker_exhausted_before_its_extension_continues() -> None:
    """The worker uses up its cutoff before it reads the extension."""
    driver = installation(spec("s"))
    before = control(driver)
    driver.extend("feed", "s", 1.0)
    worker = QueryProcessor(driver.topics, 0, KEY, table_store())
    worker.apply_lookup_records(before)
    event = Record(driver.topics.queries, 0, 0, 0, b"s", query("a", "s", HIGH))
    outputs = process_records(worker, [event])
    assert worker.streams.snapshot_streams()["s"][0] == "exhausted"
    [(key, value, _)] = messages_to(outputs, driver.topics.charges)
    # The ledger has granted more by then, so this reports charges, and does not end the stream.
    driver._append((driver.topics.charges, 0), key, value or b"")
    driver._process_all()
    grant = driver.grant("feed", "s")
    assert (grant.state, grant.settled, grant.tops) == ("open", False, 1)
    worker.apply_lookup_records(control(driver)[1:])
    assert worker.streams.snapshot_streams()["s"][0] == "open"
    assert driver.budget("feed").spent.epsilon == grant.spent.epsilon > 0


def test_forged_report_of_exhaustion_ends_nothing() -> None:
    driver = installation(spec("s", cutoff=3))
    driver.extend("feed", "s", 1.0)
    incarnation = driver.grant("feed", "s").identity.incarnation
    for tops in (1, 2):
        value = (
            f'{{"stream":"s","source":"feed","incarnation":"{incarnation}","state":"exhausted","answered":9,"tops":{tops},'
            '"spent":{"epsilon":0.1,"delta":0.0}}'
        )
        driver._append((driver.topics.charges, 0), b"feed", value.encode())
    driver._process_all()
    assert driver.grant("feed", "s").state == "open"
    assert driver.grant("feed", "s").tops == 0


def test_stream_without_extensions_is_written_as_before() -> None:
    driver = installation(spec("s"))
    [opened] = control(driver)
    assert b"extensions" not in (opened.value or b"")
    assert b"extensions" not in b"".join(one.value or b"" for one in driver.records(driver.topics.ledger))
    definition = StreamOpened.model_validate_json(opened.value or b"")
    assert definition.extensions == ()


def test_status_shows_the_new_count_at_once() -> None:
    driver = installation(spec("s"))
    driver.ask_many([query("a", "s", HIGH)])
    [worker] = driver._workers
    worker.collect_due_outputs(0.0)
    driver.extend("feed", "s", 1.0)
    [(_, value, _)] = messages_to(worker.collect_due_outputs(10.0), driver.topics.status)
    assert b'"state":"open"' in (value or b"")
    assert b'"tops_left":1' in (value or b"")


def test_answers_of_extended_streams_need_their_state() -> None:
    """Without extensions, a worker can give answers again without its changelog."""
    driver = installation(spec("s"), spec("t"))
    [worker] = driver._workers
    assert worker.answers_are_repeatable
    driver.extend("feed", "s", 1.0)
    assert not worker.answers_are_repeatable
    driver.close("feed", "s")
    assert worker.answers_are_repeatable


def test_extensions_add_up() -> None:
    driver = installation(spec("s", cutoff=2, epsilon=0.5))
    counts = [charged_answers(driver.grant("feed", "s").calibration, ())]
    for _ in range(3):
        driver.extend("feed", "s", 0.5)
        grant = driver.grant("feed", "s")
        counts.append(charged_answers(grant.calibration, grant.extensions))
    assert all(after > before for before, after in pairwise(counts))
    answers = driver.ask_many([query(str(place), "s", HIGH) for place in range(counts[-1] + 1)])
    assert [one.outcome for one in answers] == ["above"] * counts[-1] + ["halted"]
    assert answers[-1].reason == f"exhausted: all {counts[-1]} 'above' answers of the cutoff are out"
    grant = driver.grant("feed", "s")
    assert grant.spent.epsilon == pytest.approx(grant.cost.epsilon)


@pytest.mark.parametrize("kind", ["laplace", "pmw"])
def test_questions_with_an_alpha_use_up_extensions_by_price(kind: str) -> None:
    mechanism: dict[str, Any] = {"kind": "laplace", "answers": 2}
    if kind == "pmw":
        mechanism = {"kind": "pmw", "attributes": ["age", "sex"], "updates": 2, "warm_start": 0}
    model = next(one for one in KINDS if one.name == "pmw")
    driver = driver_with(model, mechanism=mechanism, epsilon=4.0)
    each = driver.extend("people", "s", 8.0)
    assert each.answers is not None
    answers: list[Answer] = []
    for place in range(80):
        where = f"age < {place % 60}" if place < 60 else f"age > {place % 60}"
        answers += driver.ask_many(
            [{"id": str(place), "stream": "s", "where": where, "alpha": 2.5 if place % 3 else 40.0}]
        )
    grant = driver.grant("people", "s")
    prices = sum(one.price or 0.0 for one in answers if one.outcome not in {"rejected", "halted"})
    assert prices > 4.0
    assert prices - 1e-9 <= grant.spent.epsilon <= grant.cost.epsilon
    figures = driver.snapshot_streams()
    driver.crash()
    assert driver.snapshot_streams() == figures
    driver.extend("people", "s", 8.0)
    [later] = driver.ask_many([{"id": "later", "stream": "s", "where": "age < 33", "alpha": 20.0}])
    assert later.outcome != "halted"
    driver.close("people", "s")
    grant, source = driver.grant("people", "s"), driver.budget("people")
    assert grant.refunded.epsilon == pytest.approx(grant.cost.epsilon - grant.spent.epsilon, abs=1e-12)
    assert source.granted.epsilon - source.refunded.epsilon == pytest.approx(source.spent.epsilon, abs=1e-12)
