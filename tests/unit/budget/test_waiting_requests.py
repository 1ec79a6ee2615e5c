"""While requests wait for a table, other requests are decided; each waiting request is decided once, in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas import FIRST_VERSION
from stream.processing.protocol import Outputs
from stream.tables.engine_limits import is_step_cancelled
from stream.tables.table_errors import UnreadableError
from tests.builders import source
from tests.held_threads import HeldThreads
from tests.unit.budget.budget_service import TOPICS, Service, opening, receipts_in, register
from tests.unit.installation import messages_to, table_store

TABLE: dict[str, list[Any]] = {"age": [20, 30, 40], "sex": ["F", "M", "F"]}


def registering(request: str, **changes: Any) -> bytes:
    """Return the registration of the table."""
    fields = {"kind": "register", "request": request, "source": source("people", "table", **changes)}
    return json.dumps(fields).encode()


def refresh(request: str) -> bytes:
    return json.dumps({"kind": "refresh", "request": request, "source": "people"}).encode()


@pytest.fixture
def threads() -> HeldThreads:
    return HeldThreads()


@pytest.fixture
def service(threads: HeldThreads) -> Service:
    tables = table_store()
    tables.put("people", TABLE)
    return Service(tables=tables, threads=threads)


def outcomes(outputs: Outputs) -> dict[str, str]:
    return {receipt.request: receipt.outcome for receipt in receipts_in(outputs)}


def waiting_in(service: Service) -> list[bytes]:
    return [key for key in service.changelog if key.startswith(b"waiting|")]


def test_registration_of_table_holds_up_no_other_source(service: Service, threads: HeldThreads) -> None:
    """While a table is read, other sources are registered and opened; the registration follows without a new request."""
    outputs = service.send(registering("slow"), register("feed"), opening("open", "s"))
    assert outcomes(outputs) == {"feed": "registered", "open": "opened"}
    assert not service.processor.has_finished_readings
    assert outcomes(service.collect_due_outputs()) == {}
    threads.run()
    assert service.processor.has_finished_readings
    assert outcomes(service.collect_due_outputs()) == {"slow": "registered"}
    assert waiting_in(service) == []
    assert not service.processor.has_finished_readings


def test_requests_of_source_keep_their_order_while_it_is_read(service: Service, threads: HeldThreads) -> None:
    """Requests about a source that is read are decided after it, in their order; a refresh reads again."""
    asked = [registering("slow"), refresh("again"), opening("open", "s", source="people")]
    assert outcomes(service.send(*asked)) == {}
    assert len(waiting_in(service)) == 3
    threads.run()
    assert outcomes(service.collect_due_outputs()) == {"slow": "registered"}
    assert len(threads.held) == 1
    threads.run()
    outputs = service.collect_due_outputs()
    receipts = receipts_in(outputs)
    assert [(one.request, one.outcome, one.version) for one in receipts] == [
        ("again", "registered", FIRST_VERSION + 1),
        ("open", "opened", None),
    ]


def test_restart_reads_table_again_and_decides_once(service: Service, threads: HeldThreads) -> None:
    """A kill while a table is read loses no request, and keeps the requests' order."""
    service.send(registering("slow"), opening("open", "s", source="people"), register("feed"))
    threads.held.clear()
    service.restart()
    assert service.processor.has_finished_readings
    assert outcomes(service.collect_due_outputs()) == {}
    threads.run()
    decided = service.collect_due_outputs()
    assert [receipt.request for receipt in receipts_in(decided)] == ["slow", "open"]
    before = service.accounts()
    service.restart()
    assert not service.processor.has_finished_readings
    assert outcomes(service.send(registering("slow"))) == {"slow": "registered"}
    assert service.accounts() == before


def test_repeat_of_waiting_request_waits_with_it(service: Service, threads: HeldThreads) -> None:
    """A request that is sent again while it waits has one record, one trail entry and one receipt."""
    service.send(registering("slow"), registering("slow"))
    service.restart()
    service.send(registering("slow"))
    assert len(waiting_in(service)) == 1
    service.collect_due_outputs()
    threads.run()
    outputs = service.collect_due_outputs()
    assert outcomes(outputs) == {"slow": "registered"}
    assert len(messages_to(outputs, TOPICS.trail)) == 1


def test_unreadable_table_refuses_its_waiting_request_only(threads: HeldThreads) -> None:
    """The reader's refusal is the receipt's reason, and the next request about the source reads the table again."""
    tables = table_store()
    service = Service(tables=tables, threads=threads)
    service.send(registering("slow"), registering("anew"))
    threads.run()
    tables.put("people", TABLE)
    [refused] = receipts_in(service.collect_due_outputs())
    assert (refused.request, refused.outcome, refused.reason) == (
        "slow",
        "refused",
        str(UnreadableError("missing")),
    )
    threads.run()
    assert outcomes(service.collect_due_outputs()) == {"anew": "registered"}


def test_opening_that_needs_row_count_waits(service: Service, threads: HeldThreads) -> None:
    """An opening whose plan needs the public number of rows waits for the table; other openings do not wait."""
    service.send(registering("slow", neighbors="replace", delta=0.001), register("feed"))
    threads.run()
    service.collect_due_outputs()
    service.restart()
    wanted = opening(
        "rows", "weights", source="people", mechanism={"kind": "pmw", "attributes": ["sex"]}, delta=1e-6
    )
    assert outcomes(service.send(wanted, opening("open", "s"))) == {"open": "opened"}
    threads.run()
    assert set(outcomes(service.collect_due_outputs())) == {"rows"}


def test_readings_are_cancelled_with_their_partition(threads: HeldThreads) -> None:
    """No table is read for a session that has ended, and another session reads it."""
    seen: list[bool] = []
    tables = table_store()

    def read(*_: Any) -> str:
        seen.append(is_step_cancelled())
        return "0" * 64

    tables.fingerprint = read  # type: ignore[assignment,method-assign]
    service = Service(tables=tables, threads=threads)
    service.send(registering("slow"))
    service.processor.cancel_readings()
    service.restart()
    service.collect_due_outputs()
    threads.run()
    assert seen == [False]
    assert not is_step_cancelled()
