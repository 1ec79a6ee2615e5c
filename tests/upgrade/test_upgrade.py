"""Records of earlier versions are read: an upgrade repeats no answer and no grant, and forgets nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from schemas import CloseStream
from stream.budget.budget_processor import BudgetProcessor
from tests.chaos.load import Questions
from tests.simulation import world as simulated
from tests.simulation.schedule import lazily
from tests.simulation.world import World, perform
from tests.upgrade.recordings import Recording, recordings


@pytest.fixture(params=list(recordings()))
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """A stopped installation; services that tests start have its key, tables and limits."""
    found = recordings()[request.param]
    monkeypatch.setattr(simulated, "KEY", found.key)
    monkeypatch.setattr(simulated, "LIMITS", found.limits)
    monkeypatch.setattr(simulated, "tables", found.tables)
    with lazily():
        yield found


def test_every_mechanism_is_recorded_by_every_version() -> None:
    kinds: dict[str, set[str]] = {}
    for name, one in recordings().items():
        kept = {event["spec"]["mechanism"]["kind"] for event in one.latest("control").values()}
        kinds.setdefault(name.rpartition("-")[0], set()).update(kept)
        assert {event["kind"] for event in one.latest("control").values()} >= {"opened", "halted", "closed"}
    assert kinds
    for kept in kinds.values():
        assert len(kept) == 11


def test_state_is_restored_as_in_the_changelog(recording: Recording) -> None:
    kept = recording.latest("state")
    seen = 0
    for number in range(recording.topics.partitions):
        worker = recording.installation().restored(recording.logs, number)
        assert not any("cannot read" in reason for reason in worker.streams.life.reasons.values())
        for stream, (
            state,
            answered,
            tops,
            offset,
            _,
            incarnation,
            surplus,
        ) in worker.streams.snapshot_streams().items():
            if (checkpoint := kept.get(stream)) is None:
                assert (answered, tops, offset, surplus) == (0, 0, -1, 0)
                continue
            seen += 1
            assert (incarnation, state) == (checkpoint["incarnation"], checkpoint["state"])
            assert (answered, tops) == (checkpoint["answered"], checkpoint["tops"])
            assert (offset, surplus) == (checkpoint["offset"], checkpoint.get("surplus", 0))
    assert seen == sum(not key.startswith("@") for key in kept)


def _as_far_as(known: Any, now: Any) -> Any:
    """Return a document without the fields that later versions added with defaults."""
    if isinstance(known, dict) and isinstance(now, dict):
        return {field: _as_far_as(value, now[field]) for field, value in known.items()}
    return now


def test_ledger_is_restored_as_it_was_written(recording: Recording) -> None:
    topics, kept = recording.topics, recording.latest("ledger")
    budget = BudgetProcessor(
        topics, 0, key_id=recording.key.key_id, tables=recording.tables(), new_incarnation=lambda _: bytes(16)
    )
    budget.restore(recording.records("ledger"))
    reached = budget.end_restore()
    assert reached == {
        topics.requests: recording.committed_of(topics.requests),
        topics.charges: recording.committed_of(topics.charges),
    }
    restored: dict[str, Any] = {}
    for name, account in budget.ledger.accounts.items():
        restored[f"source|{name}"] = account.to_record()
        for stream, grant in account.grants.items():
            restored[f"grant|{name}|{stream}"] = account.grant_record(grant)
    assert set(restored) == {key for key in kept if key.startswith(("source|", "grant|"))}
    for key, record in restored.items():
        assert _as_far_as(kept[key], record.model_dump(mode="json")) == kept[key]


def test_services_continue_where_the_earlier_version_stopped(recording: Recording) -> None:
    """No question is answered again, open streams answer, budgets still add up, and ended streams stay ended."""

    async def scene(world: World) -> list[str]:
        recording.fill(world.broker)
        world.asked.extend(recording.asked)
        world.start("budget")
        world.start("worker")
        world.start("worker")
        violations = await world.settle()
        before = sum(1 for _ in recording.records("answers"))
        after = sum(len(world.broker.committed(world.topics.answers, n)) for n in range(world.topics.partitions))
        if after != before:
            violations.append(f"{after - before} answers to nothing new")
        questions = Questions(recording.specs(), 11)
        questions._count = len(recording.asked)  # ids that differ from the recorded ones
        for _ in range(30):
            world.ask(*questions.next())
            await asyncio.sleep(0.2)
        open_now = {name for name, one in recording.latest("control").items() if one["kind"] == "opened"}
        spec = next(one for one in recording.specs() if one.stream in open_now)
        world.request(CloseStream(request="close later", source=spec.source, stream=spec.stream))
        while not world.has_receipt("close later"):
            await world.broker.arrival(1.0)
        violations += await world.settle()
        return violations + world.examine(same_version=False)

    assert perform(scene) == []
