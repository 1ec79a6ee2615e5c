"""Versions of tables from which no stream answers are not kept in memory."""

from __future__ import annotations

import gc
from weakref import ref

from sotto import Driver
from stream.tables.counted_table import CountedTable
from tests.builders import KEY, parse_source
from tests.unit.refreshes import GOING_ON, KEEPING, NEW, OLD, SOURCE, ask, service, spec


def test_table_version_without_open_streams_is_released() -> None:
    """Its ended streams still give their reason."""
    driver = service(*GOING_ON, *KEEPING)
    driver.open({**spec("laplace"), "stream": "dry", "mechanism": {"kind": "laplace", "answers": 1}})
    driver.ask("dry", where="TRUE")
    versions = []
    for table in (NEW, OLD, NEW):
        for kind in GOING_ON | KEEPING:
            ask(driver, kind)
        versions.append(ref(current_table(driver)))
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


def test_table_version_of_an_exhausted_stream_is_released() -> None:
    driver = service()
    driver.open({**spec("laplace"), "mechanism": {"kind": "laplace", "answers": 1}})
    ask(driver, "laplace")
    version = ref(current_table(driver))
    driver.refresh("people", NEW)
    gc.collect()
    assert version() is None


def test_ended_stream_gives_its_reason_without_its_table() -> None:
    driver = Driver(KEY)
    for source in ("people", "others"):
        driver.register({**SOURCE, "source": source, "neighbors": "replace"}, OLD)
        driver.open({**spec("laplace"), "stream": f"of-{source}", "source": source})
    driver.close("people", "of-people")
    driver._use_table("people", NEW)
    driver.restart(KEY)
    answers = driver.ask_many([{"stream": f"of-{source}", "where": "TRUE"} for source in ("people", "others")])
    assert [answer.outcome for answer in answers] == ["halted", "answer"]
    assert answers[0].reason == "closed on request"


def current_table(driver: Driver) -> CountedTable:
    """Return the table that new streams would use."""
    return driver._tables.get(parse_source(SOURCE))
