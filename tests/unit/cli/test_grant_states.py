"""Commands show a stream's latest state: from the ledger or from its worker's status, whichever is newer."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Amount, Answer, GrantRecord, Position, Query, StreamStatus
from schemas.calibrations import AnswersCalibration, UnknownGroupsCalibration
from stream.cli.manage.record_rows import ShownGrant
from stream.cli.output import format_amount, requested_amount
from stream.errors import NotAnswered, describe_end_remedy
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.questions import Result
from tests.builders import installation, stream
from tests.builders import source as source_document
from tests.commands import connect_commands, run_connected
from tests.unit.privacy.ledger.ledger_parts import identity, ledger_with, reserve, source, spec


def grant(**changes: Any) -> GrantRecord:
    ledger = ledger_with(source())
    reserved = reserve(ledger, spec("alarms", cutoff=5), 1)
    return ledger.account("feed").grant_record(reserved).model_copy(update=changes)


def digest(number: int = 1, **changes: Any) -> StreamStatus:
    fields: dict[str, Any] = {
        "stream": "alarms",
        "source": "feed",
        "incarnation": identity(number).incarnation,
        "state": "open",
        "answered": 90,
        "tops": 1,
        "tops_left": 4,
        "spent": Amount(epsilon=0.05, delta=0.0),
        "alpha": 1.0,
        "position": Position(topic="queries", partition=0, offset=7),
    }
    return StreamStatus.model_validate({**fields, **changes})


def test_free_answers_are_those_of_the_status_at_its_time() -> None:
    shown = ShownGrant(grant(answered=1), digest(), 1e9)
    assert (shown.totals.answered, shown.charged, shown.state, shown.totals.spent.epsilon) == (
        90,
        "1 / 5",
        "open",
        0.05,
    )
    assert shown.as_of.startswith("2001-09-0")


@pytest.mark.parametrize("older", [None, digest(number=2), digest(answered=1, tops=0)])
def test_status_with_less_or_of_another_opening_is_not_shown(older: StreamStatus | None) -> None:
    shown = ShownGrant(grant(answered=3, tops=2), older, 1e9)
    assert (shown.totals.answered, shown.charged, shown.as_of) == (3, "2 / 5", "the last charge")


def test_figures_are_final_once_the_ledger_has_the_last_totals() -> None:
    shown = ShownGrant(grant(answered=9, tops=2, state="closed", settled=True), digest(), 1e9)
    assert (shown.totals.answered, shown.state, shown.as_of) == (9, "closed", "its end")


def test_figures_of_a_restored_stream_are_older_than_its_end() -> None:
    """A stream may have answered after the backup, so its figures are not those of its end."""
    shown = ShownGrant(grant(answered=5, tops=2, state="halted", settled=True, lost=True), None, None)
    assert (shown.totals.answered, shown.as_of) == (5, "before the loss")


def test_stream_that_its_worker_refuses_is_not_shown_as_open() -> None:
    shown = ShownGrant(grant(), digest(refused="table: source data differs"), 1e9)
    assert (shown.state, shown.reason) == ("not answering", "table: source data differs")


def test_stream_without_an_ordinary_answer_left_is_exhausted() -> None:
    """If the status has only part of a charge left, an open stream is shown as exhausted; after a newer extension, as open."""
    dry = digest(answered=95, tops=4, surplus=PARTS_PER_CHARGE // 2, tops_left=0)
    assert ShownGrant(grant(), dry, 1e9).state == "exhausted"
    assert ShownGrant(grant(ending="closed"), dry, 1e9).state == "closing"
    assert ShownGrant(grant(), digest(answered=95, tops=4), 1e9).state == "open"


def test_reason_does_not_repeat_the_state() -> None:
    ended = grant(
        state="exhausted",
        ending="halted",
        settled=True,
        reason="exhausted: all 5 'above' answers of the cutoff are out",
    )
    shown = ShownGrant(ended)
    assert (shown.state, shown.reason) == ("exhausted", "all 5 'above' answers of the cutoff are out")


def test_halt_of_an_exhausted_stream_is_not_its_reason() -> None:
    shown = ShownGrant(grant(state="exhausted", ending="halted", settled=True, reason="source halted on request"))
    assert (shown.state, shown.reason) == ("exhausted", "halted: source halted on request")


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        ("s", "exhausted: all 5 'above' answers of the cutoff are out", "extend it with 'sotto stream extend s "),
        (
            "s",
            "exhausted: the counts of all 6 windows of the horizon are out",
            "it cannot be extended; open another",
        ),
        (
            "s@2026-01-01T00:00:00Z",
            "exhausted: all 5 answers of the grant are given",
            "it cannot be extended; the next period",
        ),
        (
            "s",
            "closed by the refresh to version 2; its release is of version 1",
            "open another stream for the new",
        ),
        ("s", "closed: closed by the refresh to version 2, as asked", "open another stream for the new version"),
    ],
)
def test_end_of_a_stream_has_a_remedy(name: str, reason: str, remedy: str) -> None:
    assert describe_end_remedy(name, reason).startswith(remedy)
    ended = f"halted: {reason.removeprefix('closed: ')}"
    assert describe_end_remedy(name, ended).startswith(remedy)
    error = NotAnswered(Answer(id="a", stream=name, outcome="halted", reason=reason), 2, 9)
    assert f"answered 'halted': {reason}; {remedy}" in str(error)
    assert str(error).endswith("2 of 9 questions were answered, and their charges stay")


def test_exhausted_stream_with_fixed_noise_is_not_to_be_extended() -> None:
    reason, another = "exhausted: all 5 answers of the grant are given", "it cannot be extended; open another"
    fields: dict[str, Any] = {"kind": "answers", "method": "basic"}
    answers = AnswersCalibration.model_construct(**fields)
    assert describe_end_remedy("s", reason, answers).startswith("extend it")
    gaussian = answers.model_copy(update={"method": "gaussian"})
    groups = UnknownGroupsCalibration.model_construct(**fields | {"kind": "unknown_groups"})
    assert describe_end_remedy("s", reason, gaussian).startswith(another)
    assert describe_end_remedy("s", reason, groups).startswith(another)
    halted = Result(id="a", stream="s", outcome="halted", reason=reason)
    halted.with_question(Query(id="a", stream="s", where="TRUE"), None, groups)
    assert another in str(NotAnswered(halted))


@pytest.mark.parametrize("reason", ["wrong table", "table: source data differs; refresh it", None])
def test_other_ends_of_a_stream_keep_their_text(reason: str | None) -> None:
    assert describe_end_remedy("s", reason) == ""


def test_stream_show_names_the_remedy_of_an_exhausted_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installation(
        stream("s", "feed", mechanism={"kind": "above_threshold", "threshold": 0.0, "cutoff": 1})
    )
    driver.ask("s", value=1e9)
    connect_commands(monkeypatch, driver)
    assert "for further answers: extend it with 'sotto stream extend s" in run_connected("stream", "show", "s")


def test_stream_show_says_what_counts_as_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 'below' spends the ε of the threshold's noise, and is no charged answer."""
    watch = stream("s", "feed", mechanism={"kind": "above_threshold", "threshold": 0.0, "cutoff": 3})
    driver = installation(watch, stream("t", "people", "laplace", mechanism={"answers": 2}))
    driver.ask("s", value=-1e9)
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "300")
    shown = run_connected("stream", "show", "s")
    assert "0 / 3" in shown
    assert (
        "charged: counts 'above' answers; from the first answer on, ε is also spent on the threshold's noise"
        in shown
    )
    assert "first measurements" not in shown
    assert "charged: counts" not in run_connected("stream", "show", "t")


@pytest.mark.parametrize(
    ("accountant", "delta", "words"),
    [("zcdp", 1e-6, "ρ counts"), ("pure", 1e-6, "(ε, δ) counts"), ("pure", 0.0, None)],
)
def test_stream_show_says_if_the_first_answer_spends_all(
    accountant: str, delta: float, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = source_document("people", "table", accountant=accountant, delta=1e-5)
    spec = stream("s", "people", "laplace", mechanism={"answers": 9}, epsilon=1.0, delta=delta)
    driver = installation(spec, sources=[about])
    driver.ask("s", where="age < 5")
    record = driver.grant("people", "s")
    assert (record.spent == record.cost) is (words is not None)
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "300")
    shown = run_connected("stream", "show", "s")
    assert (f"spent: {words} in full from the first answer on" if words else "1 / 9") in shown
    assert ("spent:" in shown) is (words is not None)


@pytest.mark.parametrize(("ending", "state"), [("closed", "closing"), ("halted", "halting")])
def test_requested_ending_is_shown(ending: str, state: str) -> None:
    assert ShownGrant(grant(ending=ending)).state == state


def test_zcdp_grant_shows_the_request_beside_rho() -> None:
    """No ε is converted from ρ."""
    ledger = ledger_with(source(epsilon=2.0, delta=1e-6, accountant="zcdp"))
    for number in range(2):
        reserve(ledger, spec(f"stream-{number}", epsilon=0.5), number)
    account = ledger.account("feed")
    record = account.grant_record(account.grants["stream-0"])
    assert (requested_amount(record.spec), format_amount(record.cost)) == ("ε 0.5", "ρ 0.125 (ε 0.5 added up)")
    assert format_amount(account.to_record().granted) == "ρ 0.25 (ε 1 added up)"


def test_stream_show_explains_charges_by_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question with an alpha costs another part of the grant, so the charges are not the answers."""
    driver = installation(stream("t", "people", "laplace", mechanism={"answers": 40}))
    driver.ask("t", where="age < 9", alpha=driver.grant("people", "t").calibration.alpha / 3)
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "300")
    shown = run_connected("stream", "show", "t")
    assert "charged: 1 charged answer cost as much as " in shown
    assert "(rounded up), because alpha sets a question's price" in shown


def test_stream_show_says_what_extensions_have_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of an extended stream is more than the request beside it."""
    driver = installation(stream("t", "people", "laplace", mechanism={"answers": 4}, epsilon=1.0))
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "300")
    assert "extensions" not in run_connected("stream", "show", "t")
    driver.extend("people", "t", epsilon=0.5)
    shown = run_connected("stream", "show", "t")
    assert "charged: extensions have added 2 charged answers, which the cost includes" in shown


def test_source_list_shows_the_refunded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installation(stream("t", "people", "laplace", mechanism={"answers": 2}))
    driver.close("people", "t")
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "300")
    assert "refunded" in run_connected("source", "list")
