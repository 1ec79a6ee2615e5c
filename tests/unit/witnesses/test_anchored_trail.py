"""Every trail that was cut off or rewritten before an anchor is found; an unchanged trail is never refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import TrailHead
from stream.budget.receipts import BrokenTrailError, entry_digest
from stream.budget.trail_verification import AnchoredTrail, TrailCheck
from stream.cli.manage.ledger_commands import WitnessChecks
from stream.settings import Settings
from stream.witnesses.anchor import Anchor
from stream.witnesses.witness_kinds import FileWitness
from tests.unit.witnesses.anchors import heads, trail


def finding(entries: Sequence[bytes], anchored: TrailHead, ledger: TrailHead, start: int = 0) -> str | None:
    """Return the finding of a budget service that reads the trail from the entry ``start`` on."""
    check = AnchoredTrail(anchored, ledger)
    for value in entries[start:]:
        check.add_entry(value)
    return check.describe_difference()


def verified(entries: Sequence[bytes], anchored: TrailHead) -> list[str]:
    """Return the findings of ``sotto ledger verify``."""
    checks = WitnessChecks({"file:///w": [Anchor(installation="s", written=0, head=anchored)]})
    check = TrailCheck()
    try:
        for value in entries:
            check.add_entry(value)
            checks.note_head(check.head)
    except BrokenTrailError as broken:
        return [str(broken)]
    return checks.findings()


def rewritten(entries: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """Return an unbroken chain with another entry ``first``, and therefore other entries after it."""
    found = list(entries[:first])
    for number in range(first, len(entries)):
        entry = msgspec.json.decode(entries[number])
        entry["time"] += 1
        if number:
            entry["previous"] = entry_digest(found[-1])
        found.append(msgspec.json.encode(entry))
    return tuple(found)


LENGTH = len(trail())


@given(st.data())
def test_honest_trail_is_never_refused(data: st.DataObject) -> None:
    """This holds for any earlier anchor, and for any start of reading at or before the anchored entry."""
    ledger = data.draw(st.integers(0, LENGTH))
    anchored = data.draw(st.integers(0, ledger))
    start = data.draw(st.integers(0, max(0, anchored - 1)))
    known = heads(trail())
    assert finding(trail()[:ledger], known[anchored], known[ledger], start) is None
    assert anchored == 0 or verified(trail()[:ledger], known[anchored]) == []


@given(st.data())
def test_trail_cut_off_before_its_anchor_is_found(data: st.DataObject) -> None:
    """It is found whether the ledger was rolled back too or not."""
    anchored = data.draw(st.integers(1, LENGTH))
    left = data.draw(st.integers(0, anchored - 1))
    ledger = data.draw(st.sampled_from([left, anchored, LENGTH]))
    known = heads(trail())
    assert finding(trail()[:left], known[anchored], known[ledger]) is not None
    assert verified(trail()[:left], known[anchored])


@given(st.data())
def test_trail_rewritten_before_its_anchor_is_found(data: st.DataObject) -> None:
    """It is found even if the forger makes a new chain of any length, and a ledger that agrees with it."""
    anchored = data.draw(st.integers(1, LENGTH))
    first = data.draw(st.integers(0, anchored - 1))
    forged = rewritten(trail(), first)[: data.draw(st.integers(anchored, LENGTH))]
    known = heads(forged)
    assert finding(forged, heads(trail())[anchored], known[-1]) is not None
    assert verified(forged, heads(trail())[anchored])


@given(st.data())
def test_entry_exchanged_after_the_anchor_without_a_new_chain_is_found(data: st.DataObject) -> None:
    anchored = data.draw(st.integers(1, LENGTH - 1))
    place = data.draw(st.integers(anchored, LENGTH - 1))
    forged = (*trail()[:place], rewritten(trail(), place)[place], *trail()[place + 1 :])
    assert finding(forged, heads(trail())[anchored], heads(trail())[LENGTH]) is not None
    assert place == LENGTH - 1 or verified(forged, heads(trail())[anchored])


def test_findings_name_numbers_and_places() -> None:
    known = heads(trail())
    assert finding(trail()[:5], known[9], known[5]) == (
        "the ledger was last written with 5 entries of the trail, but 9 were anchored"
    )
    assert finding(trail()[:5], known[9], known[9]) == "the trail has no entry 8, which was anchored"
    assert finding(trail()[:9], known[7], known[LENGTH]) == (
        f"the trail ends after 9 entries, but the ledger has {LENGTH}"
    )
    [sentence] = verified(trail()[:5], known[9])
    assert sentence.startswith(
        f"file:///w: the trail lacks the head 9:{known[9].digest} that was anchored at 1970"
    )


def test_findings_name_only_the_earliest_anchor_that_the_trail_lacks() -> None:
    """The trail is checked up to entry 4; each of the later anchors differs for the same reason."""
    known = heads(trail())
    found = [Anchor(installation="s", written=at * 1000, head=known[min(at, 9)]) for at in (12, 11, 9, 7, 3)]
    checks = WitnessChecks({"file:///w": found})
    for head in known[:5]:
        checks.note_head(head)
    assert checks.findings() == [
        f"file:///w: the trail lacks the head 7:{known[7].digest} that was anchored at 1970-01-01 00:00:07 UTC; 4 entries of it were checked; nor does it match 3 later anchors"
    ]
    assert checks.matches() == []


@pytest.mark.parametrize("reason", [None, "disk of broker 2 restored"])
def test_verify_prints_its_comparisons(reason: str | None) -> None:
    """The output has position, time and witness, and an accepted rollback."""
    found = [
        Anchor(installation="s", written=90_000, head=heads(trail())[9]),
        Anchor(installation="s", written=0, head=heads(trail())[3], reason=reason),
    ]
    checks = WitnessChecks({"file:///w": found}, ["witness not checked: s3://b/: down"])
    for head in heads(trail()):
        checks.note_head(head)
    [first] = checks.matches()
    assert first.startswith(
        "file:///w: the trail contains 2 anchors, the newest of 9 entries at 1970-01-01 00:01:30 UTC by its writer's clock"
    )
    assert ("disk of broker 2 restored" in first) == (reason is not None)
    assert checks.findings() == ["witness not checked: s3://b/: down"]


def test_empty_witness_is_a_finding_only_beside_a_trail() -> None:
    """The budget service anchors the first entry at once, so later an empty witness was emptied."""
    checks = WitnessChecks({"file:///w": []})
    checks.note_head(heads(trail())[0])
    assert checks.findings() == []
    assert checks.matches() == [
        "file:///w: has no anchor of this installation (SOTTO_PREFIX), and the trail is empty"
    ]
    checks.note_head(heads(trail())[-1])
    [finding] = checks.findings()
    assert finding.startswith(
        "file:///w: has no anchor of this installation (SOTTO_PREFIX) beside a trail of 14 entries"
    )
    assert "if it is new, start the budget service with it, which writes the first anchor; " in finding
    assert finding.endswith("otherwise its anchors were deleted")
    assert checks.matches() == []


def test_verify_names_a_damaged_line_of_a_witness(tmp_path: Path) -> None:
    """The other anchors are compared."""
    tmp_path.chmod(0o700)
    path = tmp_path / "anchors.jsonl"
    FileWitness(path).write(Anchor(installation="sotto", written=0, head=heads(trail())[3]))
    path.write_bytes(path.read_bytes() + b"{}\n")
    checks = WitnessChecks.open(Settings(witnesses=f"file://{path}"), is_copy=False)
    for head in heads(trail()):
        checks.note_head(head)
    [finding] = checks.findings()
    assert finding == f"file://{path}: no anchor in line 2, which is damaged; restore it from a copy, or remove it"
    assert checks.matches()[0].startswith(f"file://{path}: the trail contains 1 anchor, the newest of 3 entries")


def test_copy_of_the_trail_may_be_older_than_an_anchor() -> None:
    """Only anchors within a backup or an export are compared with it."""
    known = heads(trail())
    found = [Anchor(installation="s", written=0, head=known[number]) for number in (9, 5)]
    for entries, message in (
        (7, "contains 1 anchor"),
        (4, "2 anchors are later than this copy, and none earlier"),
    ):
        checks = WitnessChecks({"file:///w": found}, is_copy=True)
        for head in known[: entries + 1]:
            checks.note_head(head)
        assert checks.findings() == []
        assert message in checks.matches()[0]
    checks.note_head(known[5].model_copy(update={"digest": "0" * 64}))
    assert len(checks.findings()) == 1
