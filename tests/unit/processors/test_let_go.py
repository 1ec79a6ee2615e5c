"""Versions of tables from which no stream answers are not kept in memory."""

from __future__ import annotations

import gc
from weakref import ref

from sotto import Driver
from stream.tables.counted_table import CountedTable
from tests.builders import KEY, parse_source
from tests.unit.processors.refreshes import GOING_ON, KEEPING, NEW, OLD, SOURCE, ask, service, spec


def test_a_version_is_let_go_of_when_no_stream_answers_from_it_and_its_ended_streams_still_say_why() -> None:
    driver = service(*GOING_ON, *KEEPING)
    driver.open({**spec("laplace"), "stream": "dry", "mechanism": {"kind": "laplace", "answers": 1}})
    driver.ask("dry", where="TRUE")
    versions = []
    for table in (NEW, OLD, NEW):
        for kind in GOING_ON | KEEPING:
            ask(driver, kind)
        versions.append(ref(_held(driver)))
        driver.refresh("people", table)
    gc.collect()
    assert [one() for one in versions] == [None] * 3
    reasons = {kind: ask(driver, kind).reason or "" for kind in KEEPING}
    assert all(reason.startswith("closed by the refresh to version 2") for reason in reasons.values()), reasons
    dry = driver.ask("dry", where="sex = 'F'", outcomes=True)
    assert (dry.outcome, dry.reason) == ("halted", "exhausted: the only answer of the grant is given")
    assert {ask(driver, kind).version for kind in GOING_ON} == {4}
    driver.extend("people", "dry", 20.0)
    assert driver.ask("dry", where="TRUE").version == 4


def test_a_version_whose_only_stream_has_run_dry_is_let_go_of_too() -> None:
    driver = service()
    driver.open({**spec("laplace"), "mechanism": {"kind": "laplace", "answers": 1}})
    ask(driver, "laplace")
    version = ref(_held(driver))
    driver.refresh("people", NEW)
    gc.collect()
    assert version() is None


def test_an_ended_stream_says_why_where_its_table_is_not_read_any_more() -> None:
    driver = Driver(KEY)
    for source in ("people", "others"):
        driver.register({**SOURCE, "source": source, "neighbors": "replace"}, OLD)
        driver.open({**spec("laplace"), "stream": f"of-{source}", "source": source})
    driver.close("people", "of-people")
    driver._use_table("people", NEW)
    driver.restart(KEY)
    told = driver.ask_many([{"stream": f"of-{source}", "where": "TRUE"} for source in ("people", "others")])
    assert [answer.outcome for answer in told] == ["halted", "answer"]
    assert told[0].reason == "closed on request"


def _held(driver: Driver) -> CountedTable:
    """Return the table that new streams would use."""
    return driver._tables.get(parse_source(SOURCE))
