"""Sotto in memory: crashes and redeliveries at any place change nothing that a client can see."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas import Answer, OpenStream, Query, TableSource
from sotto import (
    AsyncClient,
    Client,
    Driver,
    Invalid,
    NoiseKeyError,
    NotReproducibleError,
    Refused,
    SottoError,
    Unknown,
)
from stream.processing.protocol import Record
from stream.questions.live_events import parse_time
from stream.questions.question_forms import as_settings, as_source
from stream.secret_files import SecretFileError
from stream.settings import Settings
from stream.tables.rows import Rows
from stream.testing import memory_installation as testing
from stream.testing.memory_installation import as_frame
from tests.builders import KEY, OTHER_KEY, installation, source, stream

FEED: dict[str, Any] = source(epsilon=3.0, delta=1e-5)
ROUNDED: dict[str, Any] = {**FEED, "source": "rounded", "grid": 0.1, "accountant": "zcdp"}
PEOPLE: dict[str, Any] = source("people", "table", epsilon=3.0, attributes={"age": 100})
ROWS: dict[str, list[int]] = {"age": list(range(100))}
NAMES = [f"stream-{number}" for number in range(8)]


def opening(name: str, source_name: str = "feed", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"mechanism": {"threshold": 50.0, "cutoff": 2}, **changes}
    return stream(name, source_name, **fields)


def new_driver(*streams: str, partitions: int = 2) -> Driver:
    return installation(*map(opening, streams), sources=[FEED], partitions=partitions)


def everything(driver: Driver) -> dict[str, list[Record]]:
    """Return all records of all topics."""
    topics = driver.topics
    return {
        topic: driver.records(topic)
        for topic in (
            *(topics.queries, topics.control, topics.answers, topics.state, topics.requests),
            *(topics.charges, topics.ledger, topics.trail, topics.rejected, topics.status),
        )
    }


def owner_of(driver: Driver, stream: str) -> str:
    """Return the source on which a stream was opened; any source if it was not opened."""
    return next((one.spec.source for one in driver.list_streams() if one.spec.stream == stream), "feed")


class CrashMachine(RuleBasedStateMachine):
    """Two installations get the same input; one of them crashes and has batches delivered again."""

    @initialize()
    def start(self) -> None:
        self.drivers = (Driver(KEY, partitions=2), Driver(KEY, partitions=2))
        self.stormy, self.calm = self.drivers
        self.asked = 0
        self.answers: Sequence[Answer] = []
        self.may_redeliver = False
        for driver in self.drivers:
            driver.register(FEED)
            driver.register(ROUNDED)
            driver.register(PEOPLE, ROWS)

    def both(self, tell: Any) -> None:
        results = []
        for driver in self.drivers:
            try:
                results.append(tell(driver))
            except Refused as refused:
                results.append((refused.reason, refused.asked, refused.left))
        assert results[0] == results[1]
        self.may_redeliver = False

    @rule(
        name=st.sampled_from(NAMES),
        source=st.sampled_from(["feed", "rounded", "people"]),
        calibration=st.sampled_from(["best", "textbook"]),
        cutoff=st.sampled_from([1, 2, 5]),
    )
    def open(self, name: str, source: str, calibration: str, cutoff: int) -> None:
        mechanism = {"kind": "above_threshold", "threshold": 50.0, "cutoff": cutoff}
        self.both(lambda one: one.open(opening(name, source, calibration=calibration, mechanism=mechanism)))

    @rule(
        questions=st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from([0.0, 30.0, 50.0, 70.0, 200.0]), st.integers(0, 19)),
            min_size=1,
            max_size=20,
        )
    )
    def ask(self, questions: list[tuple[str, float, int]]) -> None:
        queries: list[dict[str, Any] | bytes] = []
        for name, number, odds in questions:
            self.asked += 1
            question = {"where": f"age < {min(number, 100):.0f}"} if odds < 5 else {"value": number}
            own = {"threshold": 20.0} if odds == 19 else {}
            queries.append(b"broken" if odds == 10 else {"id": str(self.asked), "stream": name, **question, **own})
        answers = [driver.ask_many(list(queries)) for driver in self.drivers]
        assert answers[0] == answers[1]
        self.answers = answers[0]
        self.may_redeliver = True

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        self.both(lambda one: one.close(owner_of(one, name), name))

    @rule(name=st.sampled_from(NAMES))
    def halt(self, name: str) -> None:
        self.both(lambda one: one.halt(owner_of(one, name), name))

    @rule(source=st.sampled_from(["feed", "rounded", "people"]), odds=st.integers(0, 9))
    def halt_a_source(self, source: str, odds: int) -> None:
        if odds == 0:
            self.both(lambda one: one.halt(source))

    @rule(days=st.sampled_from([0.01, 8.0]))
    def wait(self, days: float) -> None:
        self.both(lambda one: one.wait(days * 86_400))

    @rule()
    def crash(self) -> None:
        self.stormy.crash()

    @rule()
    def redeliver(self) -> None:
        if self.may_redeliver:
            assert self.stormy.redeliver() == self.answers

    @invariant()
    def all_topics_and_figures_are_equal(self) -> None:
        assert self.stormy.snapshot_streams() == self.calm.snapshot_streams()
        assert everything(self.stormy) == everything(self.calm)


CrashMachine.TestCase.settings = settings(deadline=None, max_examples=25, stateful_step_count=25)
TestCrashes = CrashMachine.TestCase


def test_answers_keep_the_order_of_queries_across_partitions() -> None:
    driver = new_driver("stream-0", "stream-1", "stream-2", partitions=4)
    asked = [Query(id=str(number), stream=f"stream-{number % 3}", value=0.0) for number in range(30)]
    answers = driver.ask_many(asked)
    assert [(answer.id, answer.stream) for answer in answers] == [(query.id, query.stream) for query in asked]


def test_query_may_be_a_model_a_mapping_or_bytes() -> None:
    event = {"id": "a", "stream": "stream-0", "value": 3.5}
    forms: list[Any] = [
        event,
        Query.model_validate(event),
        Query.model_validate(event).model_dump_json(exclude_none=True).encode(),
    ]
    assert len({new_driver("stream-0").ask_many([form])[0].model_dump_json() for form in forms}) == 1


def test_key_may_be_bytes_or_digits() -> None:
    answers = []
    for key in (KEY.secret, KEY.secret.hex()):
        driver = Driver(key, partitions=2)
        driver.register(FEED)
        driver.open(opening("stream-0"))
        answers.append(
            driver.ask_many({"id": str(n), "stream": "stream-0", "value": float(n)} for n in range(100))
        )
    assert answers[0] == answers[1]


def test_another_key_gives_other_answers() -> None:
    answers = []
    for key in (KEY, OTHER_KEY):
        driver = installation(opening("stream-0"), sources=[FEED], key=key)
        answers.append(
            [
                one.outcome
                for one in driver.ask_many({"id": "a", "stream": "stream-0", "value": n / 2} for n in range(200))
            ]
        )
    assert answers[0] != answers[1]


def test_small_batches_give_the_answers_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [{"id": str(n), "stream": f"stream-{n % 3}", "value": float(n % 70)} for n in range(100)]
    streams = ("stream-0", "stream-1", "stream-2")
    at_once = new_driver(*streams)
    expected = at_once.ask_many(questions)
    monkeypatch.setattr(testing, "BATCH_EVENTS", 7)
    bit_by_bit = new_driver(*streams)
    assert bit_by_bit.ask_many(questions) == expected
    assert bit_by_bit.snapshot_streams() == at_once.snapshot_streams()
    assert bit_by_bit.budget("feed") == at_once.budget("feed")


def test_repeated_request_opens_one_stream() -> None:
    driver = new_driver()
    request = OpenStream.model_validate({"request": "mine", "stream": opening("stream-0")})
    assert driver.request(request) == driver.request(request)
    assert driver.budget("feed").granted.epsilon == 1.0


def test_table_replaces_its_path() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(PEOPLE, ROWS)
    driver.open(opening("stream-0", "people"))
    driver.crash()
    answers = driver.ask_many(
        {"id": where, "stream": "stream-0", "where": where, "threshold": -1e6} for where in ("TRUE", "age < 3")
    )
    assert [answer.outcome for answer in answers] == ["above", "above"]


@pytest.mark.parametrize(
    "cells",
    [
        [1, 2, 3.0, nan],
        [1, 2, None, "unknown"],
        ["4", 5, 6.5, "x"],
        [10**40, 1, -(10**40), 3],
        [1, inf, -inf, 2.5],
    ],
)
@pytest.mark.parametrize("domain", [20, {"kind": "bins", "edges": [0, 2.5, 5]}, ["1", "2", "unknown", "x"]])
def test_column_of_mixed_cells_is_read_like_that_of_a_file(cells: list[Any], domain: Any, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("\n".join(["age", *("" if cell is None else str(cell) for cell in cells), ""]))
    source = as_source({**PEOPLE, "path": str(file), "attributes": {"age": domain}})
    assert isinstance(source, TableSource)
    read, given = Rows.load(source), Rows.load(source, as_frame({"age": cells}))
    assert [one.tolist() for one in given.private_codes.values()] == [
        one.tolist() for one in read.private_codes.values()
    ]
    driver = Driver(KEY, partitions=1)
    assert driver.register({**PEOPLE, "attributes": {"age": domain}}, {"age": cells}).outcome == "registered"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"age": [1, 2], "sex": ["F"]}, "column 'age' has 2 cells and column 'sex' has 1; give each row a cell"),
        ({"age": [1, "x"], "sex": []}, "column 'age' has 2 cells and column 'sex' has 0"),
        ({"age": [1, [2]]}, "column 'age' has cells of types int, list; give only texts, numbers and None"),
        ({"age": [True, 2, "x"]}, "column 'age' has cells of types bool, int, str"),
        ({"age": {1, 2}}, "column 'age' is of type set; give a list of cells"),
        (3, "int is not a table; give a polars frame or a mapping of columns"),
    ],
)
def test_invalid_table_is_refused_with_its_column(table: Any, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        Driver(KEY).register(PEOPLE, table)


def test_driver_names_why_a_table_is_not_read(tmp_path: Path) -> None:
    """The refusal of a missing or malformed table, or of one without a column, names the cause, the file and the remedy."""
    driver = Driver(KEY)
    with pytest.raises(Refused, match=r"no table can be read there: missing; give a well-formed \.csv"):
        driver.register({**PEOPLE, "path": f"{tmp_path}/none.csv"})
    (tmp_path / "a.csv").write_text("age\n1\n")
    (tmp_path / "b.csv").write_text('age,note\n1,27"\n')
    with pytest.raises(Refused, match=r"'b.csv': a stray quote; put cells"):
        driver.register({**PEOPLE, "path": f"{tmp_path}/"})
    (tmp_path / "b.csv").write_text("years\n1\n")
    with pytest.raises(Refused, match=r"file 'b.csv' has no column 'age'; add it"):
        driver.register({**PEOPLE, "path": f"{tmp_path}/"})


def test_redelivery_detects_state_that_the_changelog_lacks() -> None:
    driver = new_driver("stream-0")
    driver.ask_many([{"id": "a", "stream": "stream-0", "value": 0.0}])
    driver.ask_many([{"id": "b", "stream": "stream-0", "value": 0.0}])
    place = next(place for place, log in driver._logs.items() if place[0] == driver.topics.state and log)
    del driver._logs[place][:2]
    with pytest.raises(NotReproducibleError, match=r"the 1 redelivered events gave other bytes"):
        driver.redeliver()


def retired_after(days: float, **options: float) -> bool:
    """Return whether a stream that was closed this long ago is retired at the next request."""
    driver = Driver(KEY, partitions=2, **options)
    driver.register(FEED)
    driver.open(opening("ended"))
    driver.close("feed", "ended")
    left = driver.budget("feed").left
    driver.wait(86_400 * days)
    driver.open(opening("open"))
    driver.close("feed", "open")
    for _ in range(2):
        assert driver.budget("feed").left == left
        [answer] = driver.ask_many([{"stream": "ended", "value": 1.0}])
        assert answer.outcome == "halted"
        with pytest.raises(Refused):
            driver.open(opening("ended"))
        driver.crash()
    return "ended" not in {one.spec.stream for one in driver.list_streams()}


def test_driver_retires_streams_as_the_services_do() -> None:
    """The retention time has the setting's default, in the driver's time; answers and refusals do not change."""
    days = Settings().retire_days
    assert (retired_after(days), retired_after(days + 0.1)) == (False, True)
    assert (retired_after(days, retire_days=1.0), retired_after(days + 1, retire_days=0.0)) == (True, False)


def test_redelivery_without_a_question_is_an_error() -> None:
    with pytest.raises(SottoError, match="nothing to deliver again; ask"):
        new_driver().redeliver()


def test_unknown_source_or_stream_is_an_error() -> None:
    with pytest.raises(Unknown, match="source 'nobody' is not registered"):
        new_driver().budget("nobody")
    with pytest.raises(Refused, match="source 'nobody' is not registered"):
        new_driver().close("nobody", "stream")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: Driver(None), "noise key: must have 32 bytes"),  # type: ignore[arg-type]
        (lambda _: Driver("12"), "noise key: each line must be 64 hexadecimal digits"),
        (lambda _: Driver(KEY, partitions=0), "partitions: 0 is too small"),
        (lambda driver: driver.ask(["ward-7"]), "question: is of type list; give a Query"),
        (lambda driver: driver.ask(None), "question: is of type NoneType"),
        (lambda driver: driver.ask_many("ward-7"), "questions: is of type str; give a list of questions"),
        (lambda driver: driver.ask_many(3), "questions: is of type int"),
        (lambda driver: driver.ask("ward-7", value=1.0, headers={"a": "b"}), "headers: is not a list of pairs"),
        (lambda driver: driver.sql(None), "the statement is of type NoneType; give a text"),
        (lambda driver: driver.close("vitals", None), "stream: is not a text"),
        (lambda driver: driver.halt(None), "source: is not a text"),
        (lambda driver: driver.refresh(3), "source: is not a text"),
        (lambda driver: driver.request(3), "requests: an item is of type int"),
        (lambda driver: driver.statuses(3), "streams: is not a list of names"),
        (lambda driver: list(driver.watch(3)), "streams: is not a list of names"),
        (lambda driver: driver.send(0, "text"), "send: give bytes, and a partition from 0 to 3"),
        (lambda driver: driver.send(4, b"{}"), "send: give bytes, and a partition from 0 to 3"),
        (lambda driver: driver.wait("soon"), "seconds: give a number of seconds from 0"),
        (lambda driver: driver.wait(10**400), "seconds: give a number of seconds from 0"),
    ],
)
def test_arguments_of_a_wrong_kind_are_a_sotto_error(call: Callable[[Any], object], words: str) -> None:
    """A call with a wrong argument raises a SottoError that names the argument, and changes nothing."""
    driver = Driver(KEY)
    with pytest.raises(SottoError) as refused:
        call(driver)
    assert words in str(refused.value)
    assert not driver.records(driver.topics.requests)
    assert not driver.records(driver.topics.queries)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_client_accepts_the_address_of_kafka_as_text(kind: Any) -> None:
    """A text in place of settings is the address; an unknown setting is refused with its name."""
    assert kind("127.0.0.1:9999").__dict__ is not None
    for given, fields, words in (
        ("127.0.0.1:9999", {"bootstrap": "127.0.0.1:9998"}, "bootstrap: is given twice"),
        ({"bootstrap": "127.0.0.1:9999"}, {}, "settings: is of type dict; give Kafka's address"),
        (9092, {}, "settings: is of type int"),
        (
            "127.0.0.1:" + "9" * 4500,
            {},
            f"bootstrap: '127.0.0.1:{'9' * 54}' has no port from 0 to 65535; give HOST:PORT",
        ),
        ("127.0.0.1:9092,kafka:x", {}, "bootstrap: 'kafka:x' has no port"),
        ("kafka", {}, "bootstrap: 'kafka' has no port from 0 to 65535; give HOST:PORT"),
        ("[::1]", {}, "bootstrap: '[::1]' has no port"),
        ("::1", {}, "bootstrap: '::1' has no port"),
        (None, {"boostrap": "127.0.0.1:9999"}, "boostrap: is not a setting; did you mean 'bootstrap'?"),
    ):
        with pytest.raises(Invalid) as refused:
            kind(given, **fields)
        assert words in str(refused.value)
    assert as_settings("127.0.0.1:9999", {}).bootstrap == "127.0.0.1:9999"


def test_wrong_arguments_name_the_public_method() -> None:
    with Driver(KEY) as driver:
        call: Any = driver
        with pytest.raises(TypeError, match=r"^Driver\.ask\(\) missing 1 required positional argument"):
            call.ask(stream="s", where="TRUE")
        with pytest.raises(TypeError, match=r"^Driver\.trail\(\) got an unexpected keyword"):
            list(call.trail(last=1))


def test_errors_of_keys_and_secret_files_are_sotto_errors() -> None:
    """One ``except SottoError`` catches an unusable noise key or secret file, too."""
    assert issubclass(NoiseKeyError, SottoError)
    assert issubclass(SecretFileError, SottoError)


@pytest.mark.parametrize(
    "time",
    [10**4500, -(10**4500), Fraction(10**4500, 3), 1e308],
    ids=["integer", "negative", "fraction", "double"],
)
def test_time_of_thousands_of_digits_is_refused(time: Any) -> None:
    """A number beyond all doubles is no moment, and is refused like other invalid numbers."""
    with pytest.raises(Invalid, match=r"^time: .* is not (a time|from 1970 to 9999); give Unix time"):
        parse_time(time)
