"""The budget service carries out each request once, always answers it, and refunds the unspent amount."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_DEFINITION_BYTES, CloseStream, GrantRecord, OpenStream, Receipt, SourceRecord
from sotto import Refused
from stream.budget import receipts
from stream.budget.receipts import request_digest
from tests.builders import KEY, installation, source
from tests.unit.budget.budget_service import (
    TOPICS,
    charge,
    ending,
    grant_in,
    ledger_in,
    opening,
    ready,
    receipts_in,
    register,
    request_codec,
)
from tests.unit.installation import messages_to, spec

hashes = st.sampled_from(["0" * 64, "1" * 64, "f" * 64])
identifiers = st.lists(st.sampled_from(["R1", "|", "receipt|", "0" * 64, "1" * 64]), min_size=1, max_size=4).map(
    lambda parts: "".join(parts)[:128]
)


def test_repeated_request_gets_the_same_receipt_and_does_nothing() -> None:
    service = ready()
    [first] = receipts_in(service.send(opening("1", "alarms")))
    outputs = service.send(opening("1", "alarms"))
    assert ledger_in(outputs) == [first]
    assert not messages_to(outputs, TOPICS.control)
    assert list(service.processor.ledger.account("feed").grants) == ["alarms"]


def test_other_request_under_a_used_id_is_refused() -> None:
    """The first receipt stays."""
    service = ready()
    [first] = receipts_in(service.send(opening("1", "alarms")))
    for other in (opening("1", "others"), ending("close", "1", "alarms")):
        outputs = service.send(other)
        [refused] = receipts_in(outputs)
        assert refused.outcome == "refused"
        assert "choose another id" in (refused.reason or "")
        assert not messages_to(outputs, TOPICS.control)
    assert list(service.processor.ledger.account("feed").grants) == ["alarms"]
    service.restart()
    assert receipts_in(service.send(opening("1", "alarms"))) == [first]


def test_each_body_under_one_id_has_a_separate_receipt() -> None:
    service = ready()
    bodies = [opening("1", f"stream-{number}", epsilon=0.1) for number in range(8)]
    receipts = receipts_in(service.send(*bodies))
    assert [receipt.outcome for receipt in receipts] == ["opened", *["refused"] * 7]
    assert [receipt.digest for receipt in receipts] == [
        request_digest(request_codec.decode(body)) for body in bodies
    ]
    assert [receipt.stream for receipt in receipts] == [f"stream-{number}" for number in range(8)]
    assert receipts_in(service.send(*bodies)) == receipts


def test_receipt_cannot_be_deleted_or_replaced_by_a_chosen_id() -> None:
    service = ready()
    service.send(opening("R1", "first", epsilon=0.1))
    other = opening("R1", "second", epsilon=0.1)
    digest = request_digest(request_codec.decode(other))
    names = [f"R1|{digest}", f"{digest}|R1", f"receipt|{digest}|R1"]
    theirs = [opening(name, f"stream-{n}", epsilon=0.1) for n, name in enumerate(names)]
    receipts = receipts_in(service.send(*theirs))
    service.send(other)
    service.restart()
    assert receipts_in(service.send(*theirs)) == receipts
    assert {receipt.outcome for receipt in receipts} == {"opened"}


@given(name=identifiers, reused=identifiers, digest=hashes)
@settings(deadline=None)
def test_refusal_of_a_reused_id_has_no_key_of_a_receipt(name: str, reused: str, digest: str) -> None:
    assert receipts.receipt_key(name) != receipts.refusal_key(reused, digest)


def test_request_digest_does_not_change_with_explicit_defaults() -> None:
    plain = request_codec.decode(b'{"kind":"close","request":"1","source":"feed","stream":"alarms"}')
    written_out = request_codec.decode(ending("close", "1", "alarms", reason="closed on request"))
    halt = request_codec.decode(ending("halt", "1", "alarms"))
    assert request_digest(plain) == request_digest(written_out) != request_digest(halt)


def test_close_of_a_closed_stream_reports_that_it_is_closed() -> None:
    service = ready()
    incarnation = grant_in(service.send(opening("1", "alarms"))).identity.incarnation
    first, second = receipts_in(service.send(ending("close", "2", "alarms"), ending("halt", "3", "alarms")))
    assert (first.outcome, first.state) == (second.outcome, second.state) == ("closing", "open")
    service.send(charge("alarms", incarnation, state="closed"), topic=TOPICS.charges)
    receipts = receipts_in(service.send(ending("close", "4", "alarms"), ending("halt", "5", "alarms")))
    assert [receipt.state for receipt in receipts] == ["closed", "closed"]


def test_repeated_request_in_one_batch_is_done_once() -> None:
    service = ready()
    outputs = service.send(opening("1", "alarms"), opening("1", "alarms"))
    [first, second] = receipts_in(outputs)
    assert first == second
    assert len(messages_to(outputs, TOPICS.control)) == 1


def test_refusal_is_repeated_even_if_its_reason_is_gone() -> None:
    service = ready()
    [refused] = receipts_in(service.send(opening("1", "greedy", epsilon=11.0)))
    service.send(register("2", source="other"))
    assert refused.outcome == "refused"
    assert receipts_in(service.send(opening("1", "greedy", epsilon=11.0))) == [refused]


def test_request_is_remembered_across_restarts() -> None:
    service = ready()
    [first] = receipts_in(service.send(opening("1", "alarms")))
    service.restart()
    assert receipts_in(service.send(opening("1", "alarms"))) == [first]
    [later] = receipts_in(service.send(opening("2", "others")))
    assert later.sequence == first.sequence + 1


def test_refusal_of_an_exhausted_source_names_asked_and_left() -> None:
    driver = installation(*(spec(f"stream-{number}") for number in range(9)))
    with pytest.raises(Refused, match=r"source 'feed' cannot pay: ε = 1\.5 asked, ε = 1 left") as refused:
        driver.open(spec("greedy", epsilon=1.5))
    assert refused.value.asked is not None
    assert refused.value.left is not None
    assert (refused.value.asked.epsilon, refused.value.left.epsilon) == (1.5, 1.0)
    driver.open(spec("modest"))
    assert driver.budget("feed").left.epsilon == 0.0


def test_refusal_for_delta_says_that_none_is_left() -> None:
    driver = installation(spec("first", epsilon=1.0))
    with pytest.raises(Refused, match=r"cannot pay: ε = 1, δ = 1e-06 asked, ε = 9, δ = 0 left"):
        driver.open(spec("many", mechanism={"kind": "laplace", "answers": 2000}, epsilon=1.0, delta=1e-6))


@pytest.mark.parametrize("second", ["feed", "other"])
def test_stream_name_is_never_used_again(second: str) -> None:
    driver = installation(spec("alarms"))
    driver.register(source("other"))
    driver.close("feed", "alarms")
    with pytest.raises(Refused, match="'alarms' was used before, on source 'feed'"):
        driver.open(spec("alarms", second))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"{", "Invalid JSON"),
        (None, "has no value"),
        (b"{}", "kind: give one of 'register', 'open', 'extend'"),
        (b'{"kind":"open","request":"1"}', "stream: is missing; give it"),
        (register(epsilon=-1), "source.epsilon"),
        (register() + b" " * MAX_DEFINITION_BYTES, f"send at most {MAX_DEFINITION_BYTES}"),
    ],
)
def test_malformed_request_is_a_dead_letter_and_others_are_done(value: bytes | None, words: str) -> None:
    service = ready()
    outputs = service.send(opening("1", "one"), value, opening("2", "two"))
    assert [receipt.outcome for receipt in receipts_in(outputs)] == ["opened", "opened"]
    [(key, kept, headers)] = messages_to(outputs, TOPICS.rejected)
    assert (key, kept) == (b"feed", value)
    facts = dict(headers)
    assert facts["__connect.errors.exception.class.name"] == b"malformed"
    assert facts["__connect.errors.offset"] == b"2"
    assert words in facts["__connect.errors.exception.message"].decode()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (opening("1", "alarms", source="nobody"), "source 'nobody' is not registered"),
        (ending("close", "1", "nobody"), "stream 'nobody' is not open on source 'feed'"),
        (ending("halt", "1", "nobody"), "stream 'nobody' is not open on source 'feed'"),
        (b'{"kind":"halt_source","request":"1","source":"nobody"}', "source 'nobody' is not registered"),
        (register("1", epsilon=9.0), "source 'feed' is registered with another definition"),
        (register("1", source="wide", sensitivity=1e12, grid=1e-12, minimum=-1e3, maximum=1e3), "exceeds"),
    ],
)
def test_impossible_request_is_refused_by_receipt(value: bytes, words: str) -> None:
    service = ready()
    service.send(opening("0", "first"))
    outputs = service.send(value)
    if b'"wide"' in value:
        outputs = service.send(opening("2", "alarms", source="wide"))
    [receipt] = receipts_in(outputs)
    assert receipt.outcome == "refused"
    assert words in (receipt.reason or "")
    assert not messages_to(outputs, TOPICS.control)
    assert not messages_to(outputs, TOPICS.rejected)


def test_monotone_counts_are_refused_under_replace() -> None:
    driver = installation(
        sources=[source("people", "table", neighbors="replace")], rows={"people": {"age": [1], "sex": ["F"]}}
    )
    mechanism = {"kind": "above_threshold", "threshold": 1.0, "monotone": True}
    with pytest.raises(Refused, match=r"mechanism\.monotone: .* register the source with neighbors 'add-remove'"):
        driver.open(spec("people-0", "people", mechanism=mechanism))


def test_ledger_batch_has_one_record_per_source_and_grant() -> None:
    service = ready()
    outputs = service.send(*(opening(str(number), f"stream-{number}", epsilon=0.1) for number in range(5)))
    kinds = [type(record) for record in ledger_in(outputs)]
    assert (kinds.count(SourceRecord), kinds.count(GrantRecord), kinds.count(Receipt)) == (1, 5, 5)


def test_ledger_restores_from_its_changelog_in_any_order() -> None:
    service = ready()
    service.send(register("other", source="other", accountant="zcdp", delta=1e-6))
    incarnations = {}
    for number, feed in enumerate(["feed", "other", "feed"]):
        outputs = service.send(opening(str(number), f"stream-{number}", source=feed, cutoff=3))
        incarnations[number] = grant_in(outputs).identity.incarnation
    service.send(charge("stream-0", incarnations[0], tops=2, answered=9), topic=TOPICS.charges)
    service.send(ending("close", "3", "stream-2"))
    service.send(charge("stream-2", incarnations[2], state="closed"), topic=TOPICS.charges)
    before = service.processor.ledger.accounts
    service.restart()
    assert service.processor.ledger.accounts == before


def test_oldest_receipts_are_dropped_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 3)
    service = ready()
    for number in range(4):
        service.send(opening(str(number), f"stream-{number}", epsilon=0.1))
    kept = sorted(key for key in service.changelog if key.startswith(b"receipt|"))
    assert kept == [b"receipt|1", b"receipt|2", b"receipt|3"]
    service.restart()
    [again] = receipts_in(service.send(opening("2", "stream-2", epsilon=0.1)))
    assert again.outcome == "opened"
    # A request that the service has forgotten counts as new, but the ledger itself refuses to do it twice.
    [late] = receipts_in(service.send(opening("0", "stream-0", epsilon=0.1)))
    assert late.outcome == "refused"
    assert "was used before" in (late.reason or "")
    assert len(service.processor.ledger.account("feed").grants) == 4


def test_grant_names_the_noise_key_and_a_new_incarnation() -> None:
    service = ready()
    first, second = (grant_in(service.send(opening(name, name))) for name in ("one", "two"))
    assert first.identity.key_id == second.identity.key_id == KEY.key_id
    assert first.identity.incarnation != second.identity.incarnation
    assert first.identity.digest != second.identity.digest


def test_request_models_built_in_python_are_the_same_requests() -> None:
    service = ready()
    stream = OpenStream.model_validate({"request": "1", "stream": spec("alarms")})
    close = CloseStream(request="2", source="feed", stream="alarms")
    outputs = service.send(request_codec.encode(stream), request_codec.encode(close))
    assert [receipt.outcome for receipt in receipts_in(outputs)] == ["opened", "closing"]


def test_ledger_knows_its_positions_after_a_restore() -> None:
    service = ready()
    service.send(opening("1", "alarms"))
    service.send(charge("nobody", "0" * 32), b"{", topic=TOPICS.charges)
    expected = {TOPICS.requests: service.offset - 2, TOPICS.charges: service.offset}
    service.restart()
    assert service.processor.end_restore() == expected
    service.send(b"{")
    service.restart()
    assert service.processor.end_restore() == {**expected, TOPICS.requests: service.offset}


@pytest.mark.parametrize(("beyond", "digested"), [("end", b""), ("unpromised", b',"beyond":"unpromised"')])
def test_request_digest_keeps_the_first_default_of_beyond(beyond: str, digested: bytes) -> None:
    """Clients of the first version omit "end" from the digest, although it is no longer the default."""
    mechanism = {"kind": "pmw", "attributes": ["a"], "beyond": beyond}
    spec = {"stream": "s", "source": "t", "mechanism": mechanism, "epsilon": 0.5}
    request = OpenStream.model_validate({"request": "r", "stream": spec})
    body = (
        b'{"request":"r","stream":{"stream":"s","source":"t","mechanism":{"kind":"pmw","attributes":["a"]'
        + digested
        + b'},"epsilon":0.5}}'
    )
    assert request_digest(request) == blake3(b"open\n" + body).hexdigest()
