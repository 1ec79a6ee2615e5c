"""New versions of a table: which streams continue or end, what their answers show, and what crashes do not change."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from schemas import Control, RefreshSource
from schemas.wire import Codec
from sotto import Driver, Refused
from stream.privacy.noise.keyed_noise import DrawRole
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from stream.tables.table_errors import TableDataError
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, source
from tests.processing import process_records
from tests.unit.refreshes import GOING_ON, KEEPING, NEW, OLD, QUESTIONS, SOURCE, ask, service, spec

_control: Codec[Control] = Codec(Control, limit=1 << 20)


def test_refresh_continues_streams_that_draw_new_noise() -> None:
    """They answer from the new rows, and answers name the version."""
    driver = service(*GOING_ON)
    before = {kind: ask(driver, kind) for kind in GOING_ON}
    assert {one.version for one in before.values()} == {None}
    receipt = driver.refresh("people", NEW)
    assert (receipt.outcome, receipt.version) == ("registered", 2)
    for kind in GOING_ON:
        answer = ask(driver, kind)
        assert (answer.version, answer.index) == (2, 1), kind
        assert answer.spent is not None
        assert driver.grant("people", kind).state == "open"
    # ε = 20 for nine answers: noise of a few rows.
    laplace = ask(driver, "laplace").estimate
    assert laplace is not None
    assert abs(laplace - 70) < 20
    assert (before["above_threshold"].outcome, ask(driver, "above_threshold").outcome) == ("below", "above")
    assert driver.refresh("people", OLD).version == 3
    assert (ask(driver, "above_threshold").outcome, ask(driver, "laplace").version) == ("below", 3)


def test_sql_names_the_version_of_the_data() -> None:
    driver = service("laplace")
    statement = "SELECT COUNT(*) AS n FROM laplace"
    assert not any("version" in one for one in driver.sql(statement).warnings)
    driver.refresh("people", NEW)
    assert "answers are of version 2 of the data" in driver.sql(statement).warnings


def test_refresh_closes_and_refunds_streams_that_keep_results() -> None:
    """The reason of the stream and of its answers names the refresh."""
    driver = service(*KEEPING)
    ask(driver, "pmw")
    driver.refresh("people", NEW)
    for kind in KEEPING:
        grant = driver.grant("people", kind)
        assert (grant.state, grant.ending) == ("closed", "closed"), kind
        assert grant.reason is not None
        assert grant.reason.startswith("closed by the refresh to version 2; its "), grant.reason
        assert "of version 1" in grant.reason
        answer = ask(driver, kind)
        assert (answer.outcome, answer.reason) == ("halted", grant.reason)
        assert grant.refunded.epsilon > 0.0
    assert driver.grant("people", "histogram").refunded.epsilon == 20.0, "it had answered nothing"


def test_refresh_prevents_extension_of_exhausted_kept_results() -> None:
    """A stream that keeps results cannot continue in the new version."""
    driver = service("laplace")
    mechanism = {**KEEPING["sparse_pmw"][0], "updates": 1, "gap": 0.001}
    driver.open({**spec("sparse_pmw", 100.0), "mechanism": mechanism})
    for _ in range(9):
        ask(driver, "laplace")
    ask(driver, "sparse_pmw")
    assert {driver.grant("people", kind).state for kind in ("laplace", "sparse_pmw")} == {"exhausted"}
    driver.refresh("people", NEW)
    with pytest.raises(Refused, match="cannot be extended"):
        driver.extend("people", "sparse_pmw", 5.0)
    driver.extend("people", "laplace", 5.0)
    assert ask(driver, "laplace").version == 2


def test_refresh_closes_all_streams_on_request() -> None:
    driver = service("laplace", "histogram", "above_threshold")
    driver.refresh("people", NEW, close=True)
    reasons = {driver.grant("people", kind).reason for kind in ("laplace", "above_threshold")}
    assert reasons == {"closed by the refresh to version 2, as asked"}
    driver.open({**spec("laplace"), "stream": "next"})
    assert driver.ask("next", where="TRUE").version == 2


def test_refresh_of_equal_rows_is_a_new_version() -> None:
    """Its fingerprint is new too, so it does not show that nothing changed."""
    driver = service("laplace")
    seen = []
    for table in (OLD, NEW, NEW):
        driver.refresh("people", table)
        seen.append(driver.budget("people"))
    assert [one.version for one in seen] == [2, 3, 4]
    assert len({one.fingerprint for one in seen}) == 3
    assert driver.register(SOURCE).outcome == "registered", "the same definition, over data that are on record"


@pytest.mark.parametrize("table", ["as it was", "changed", "broken", "missing"])
def test_repeated_registration_compares_the_definition_alone(table: str, tmp_path: Path) -> None:
    """An equal definition gets the same receipt, whatever happened to the table; another definition is refused."""
    path = tmp_path / "people.csv"
    pl.DataFrame(OLD).write_csv(path)
    source = {**SOURCE, "path": str(path)}
    driver = Driver(KEY)
    driver.register(source)
    before = driver.budget("people")
    if table == "changed":
        pl.DataFrame(NEW).write_csv(path)
    elif table == "broken":
        path.write_text('age,sex\n"')
    elif table == "missing":
        path.unlink()
    receipt = driver.register(source)
    assert (receipt.outcome, receipt.reason, driver.budget("people")) == ("registered", None, before)
    with pytest.raises(Refused, match="source 'people' is registered with another definition"):
        driver.register({**source, "epsilon": 7.5})


def test_changed_file_without_a_refresh_halts_its_streams(tmp_path: Path) -> None:
    """The reason names the command that refreshes the source."""
    path = tmp_path / "people.csv"
    pl.DataFrame(OLD).write_csv(path)
    driver = Driver(KEY, partitions=2)
    driver.register({**SOURCE, "path": str(path)})
    driver.open(spec("laplace"))
    ask(driver, "laplace")
    pl.DataFrame(NEW).write_csv(path)
    driver.restart(KEY)
    refused = ask(driver, "laplace")
    assert refused.outcome == "halted"
    assert "sotto source refresh" in (refused.reason or "")
    assert driver.refresh("people").version == 2
    answer = ask(driver, "laplace")
    assert (answer.outcome, answer.version, answer.index) == ("answer", 2, 1)


def test_refresh_with_crashes_and_redelivery_gives_the_same_bytes() -> None:
    """This holds for crashes on either side of the refresh."""
    driver = service(*GOING_ON)
    driver.ask_many([{"id": kind, "stream": kind, **QUESTIONS[kind]} for kind in GOING_ON])
    driver.refresh("people", NEW)
    driver.ask_many([{"id": kind, "stream": kind, **QUESTIONS[kind]} for kind in GOING_ON])
    figures = driver.snapshot_streams()
    driver.redeliver()
    driver.crash()
    assert driver.snapshot_streams() == figures
    assert [one.version for one in driver.answers(from_beginning=True)].count(2) == len(GOING_ON)


def test_answers_of_an_old_version_are_not_given_again_of_a_new() -> None:
    driver = service("laplace")
    ask(driver, "laplace")
    first = driver.records(driver.topics.answers)
    driver.refresh("people", NEW)
    driver.crash()
    assert driver.records(driver.topics.answers) == first


def test_refresh_keeps_the_threshold_and_draws_new_query_noise() -> None:
    driver = service("above_threshold")

    def noise() -> tuple[bytes, ...]:
        [streams] = [one.streams for one in driver._workers if "above_threshold" in one.streams.slots]
        slot = streams.slots["above_threshold"]
        return tuple(
            streams.noise.subkey(slot, role) for role in (DrawRole.THRESHOLD, DrawRole.QUERY, DrawRole.ANSWER)
        )

    ask(driver, "above_threshold")
    before = noise()
    driver.refresh("people", NEW)
    after = noise()
    assert after[0] == before[0]
    assert not {*after[1:]} & {*before[1:]}
    barrier = driver.snapshot_streams()["above_threshold"][4]
    driver.crash()
    assert noise() == after
    assert driver.snapshot_streams()["above_threshold"][4] == barrier


def test_older_control_events_take_no_refresh_back() -> None:
    driver = service("laplace", "histogram")
    old = driver.records(driver.topics.control)
    driver.refresh("people", NEW)
    for worker, partition in zip(driver._workers, range(2), strict=True):
        worker.apply_lookup_records([one for one in old if one.partition == partition])
    assert ask(driver, "laplace").version == 2
    assert ask(driver, "histogram").outcome == "halted"
    # The same in a restore in which an older event comes after the later one.
    new = driver.records(driver.topics.control)
    place = next(one.partition for one in old if one.key == b"laplace")
    processor = QueryProcessor(driver.topics, place, KEY, driver._tables)
    processor.restore([one for one in (*new, *old) if one.partition == place])
    processor.end_restore()
    assert processor.streams.terms_at(processor.streams.slots["laplace"]).version == 2
    assert not processor.answers_are_repeatable


def test_worker_with_the_old_file_does_not_answer() -> None:
    driver = service("laplace")
    driver.refresh("people", NEW)
    record = [one for one in driver.records(driver.topics.control) if one.key == b"laplace"][-1]
    tables = TableStore.keyed_by(KEY)
    tables.put("people", OLD)
    processor = QueryProcessor(driver.topics, record.partition, KEY, tables)
    processor.restore([record])
    processor.end_restore()
    query = b'{"id":"1","stream":"laplace","where":"TRUE"}'
    outputs = process_records(
        processor, [Record(driver.topics.queries, record.partition, 0, 0, b"laplace", query)]
    )
    [(_, value, _)] = outputs.messages[driver.topics.answers, record.partition]
    assert b"differs from what was registered" in (value or b"")


def test_version_is_recognized_under_an_older_key() -> None:
    older, newer = KEY, NoiseKey(bytes(range(1, 33)), (KEY,))
    stores = [TableStore.keyed_by(key) for key in (older, newer)]
    source = service().budget("people").source
    for store in stores:
        store.put("people", NEW)
    second = stores[0].fingerprint(source, 2)  # type: ignore[arg-type]
    assert stores[1].get(source, second, 2).private_row_count == 90  # type: ignore[arg-type]
    fresh = TableStore.keyed_by(newer)
    fresh.put("people", NEW)
    with pytest.raises(TableDataError, match="differs"):
        fresh.get(source, second, 3)  # type: ignore[arg-type]


def test_repeated_refresh_request_makes_one_version() -> None:
    """A refused refresh changes nothing."""
    driver = service("laplace")
    request = RefreshSource(request="r", source="people")
    assert [one.version for one in driver.requests([request, request])] == [2, 2]
    assert driver.budget("people").version == 2
    driver.register(source(epsilon=1.0))
    with pytest.raises(Refused, match="only tables can be refreshed"):
        driver.refresh("feed")
    with pytest.raises(Refused, match="not registered"):
        driver.refresh("nobody")
    with pytest.raises(Refused, match="column 'sex'"):
        driver.refresh("people", {"age": [1]})
    driver._tables.put("people", OLD)
    driver.halt("people")
    with pytest.raises(Refused, match="is halted"):
        driver.refresh("people")
    assert driver.budget("people").version == 2


def test_refresh_selects_the_same_rows_of_each_person() -> None:
    rows = {
        "who": [f"p{number % 20}" for number in range(80)],
        "sex": ["FM"[number % 3 == 0] for number in range(80)],
    }
    driver = Driver(KEY, partitions=1)
    driver.register({**SOURCE, "person": "who", "contribution": 2}, rows)
    driver.open({**spec("laplace", 400.0)})
    first = ask(driver, "laplace").estimate
    driver.refresh("people", {name: column[::-1] for name, column in rows.items()})
    assert ask(driver, "laplace").estimate == first
    assert driver.ask("laplace", people=True).estimate == 20


def test_control_events_without_a_refresh_are_written_as_before() -> None:
    driver = service("laplace")
    assert all(b'"version"' not in (one.value or b"") for one in driver.records(driver.topics.control))
    assert all(b'"version"' not in (one.value or b"") for one in driver.records(driver.topics.ledger))
    driver.refresh("people", NEW)
    [definition] = [_control.decode(one.value) for one in driver.records(driver.topics.control)[-1:]]
    assert definition.version == 2
