"""The guards of sessions: the effect of a witness that fails, hangs or recovers late on a partition."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import pytest
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from schemas import TrailHead
from stream.engine.health import Metrics, ServiceHealth
from stream.engine.restore import read_ends
from stream.kafka.client.adapter import Clients
from stream.processing.topic_names import Topics
from stream.services import witness_guards
from stream.services.runner import witness_guard
from stream.services.witness_guards import AnchoringGuard, RolledBackError, WatchedWitness, WitnessGuard
from stream.settings import Settings
from stream.witnesses.anchor import Anchor, TimeStampVerifier, WitnessError
from stream.witnesses.witness_kinds import FileWitness
from tests.patience import SECONDS
from tests.unit.witnesses.anchors import anchor
from tests.unit.witnesses.time_stamp_authority import time_stamp_authority

SETTINGS = Settings(anchor_seconds=1.0, anchor_epsilon=1.0)
TOPICS = Topics("sotto", 2)


class FixedEndsConsumer:
    """A consumer of topics that all end at one offset."""

    def __init__(self, end: int = 10) -> None:
        self.end = end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)


class WitnessInMemory:
    """A witness in memory."""

    def __init__(self, *anchors: Anchor) -> None:
        self.name = "memory"
        self.anchors = list(anchors)
        self.is_down = False

    def write(self, anchor: Anchor) -> None:
        self._fail()
        self.anchors.append(anchor)

    def read_newest(self, installation: str) -> list[Anchor]:
        del installation
        self._fail()
        return self.anchors

    def _fail(self) -> None:
        if self.is_down:
            raise WitnessError("memory: down")


class BudgetProcessorStub:
    """The part of a budget service's processor that guards use."""

    def __init__(self) -> None:
        self.trail_head: TrailHead | None = None
        self.granted: float | None = None

    def take_largest_grant(self) -> float | None:
        granted, self.granted = self.granted, None
        return granted


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_guards, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(witness_guards, "READING_AGE_SECONDS", 0.0)
    monkeypatch.setattr(witness_guards, "LEAST_ANCHOR_SECONDS", 0.0)


def guard_of(
    *witnesses: Any, kind: type[WitnessGuard] = WitnessGuard, **settings: float | str
) -> tuple[Any, Metrics]:
    metrics = Metrics("budget" if kind is AnchoringGuard else "worker")
    clients = Clients(
        consumer=lambda **_: FixedEndsConsumer(),  # type: ignore[arg-type]
        producer=lambda **_: None,  # type: ignore[arg-type]
        observer=lambda **_: None,  # type: ignore[arg-type]
    )
    own = SETTINGS.model_copy(update=settings)
    return kind(own, TOPICS, witnesses, metrics, clients), metrics


async def until(holds: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def test_witness_that_is_down_stops_nothing_and_is_compared_later() -> None:
    """The session that began in the meantime ends at its next commit."""
    witness = WitnessInMemory(anchor(5, ends={"state": (11, 10)}))
    witness.is_down = True
    guard, metrics = guard_of(witness, anchor_seconds=0.01)
    async with guard:
        for partition in range(2):
            await guard.check(partition, BudgetProcessorStub(), FixedEndsConsumer())
            guard.note_committed(partition, BudgetProcessorStub())
        assert metrics.failing_witnesses._value.get() == 1
        assert metrics.rolled_back._value.get() == 0
        witness.is_down = False
        await until(lambda: metrics.rolled_back._value.get() == 1)
        assert metrics.failing_witnesses._value.get() == 0
        with pytest.raises(RolledBackError, match="ends at offset 10, but offset 11 was anchored"):
            guard.note_committed(0, BudgetProcessorStub())
        guard.note_committed(1, BudgetProcessorStub())


async def test_refusal_names_the_last_anchor_of_the_missing_offset() -> None:
    """Anchors that are written after the loss have smaller offsets."""
    lost = [anchor(4, ends={"state": (11,)}), anchor(5, ends={"state": (11,)}), anchor(6, ends={"state": (0,)})]
    guard, _ = guard_of(WitnessInMemory(*lost))
    async with guard:
        with pytest.raises(
            RolledBackError, match=f"but offset 11 was anchored .*, last {re.escape(lost[1].time)}"
        ):
            await guard.check(0, BudgetProcessorStub(), FixedEndsConsumer())


async def test_damaged_witness_stops_nothing_and_is_reported(tmp_path: Path) -> None:
    """Its good anchors are compared and further ones are written; the log names the damaged line."""
    tmp_path.chmod(0o700)  # noqa: ASYNC240  (a test may block)
    witness = FileWitness(path := tmp_path / "anchors.jsonl")
    witness.write(anchor(5, ends={"state": (11, 10)}))
    path.write_bytes(b"{}\n" + path.read_bytes())
    guard, metrics = guard_of(witness)
    async with guard:
        with capture_logs() as logged, pytest.raises(RolledBackError, match="but offset 11 was anchored"):
            await guard.check(0, BudgetProcessorStub(), FixedEndsConsumer())
        assert "no anchor in line 1, which is damaged" in next(
            one["reason"] for one in logged if one["event"] == "witness failed"
        )
        await guard.check(1, BudgetProcessorStub(), FixedEndsConsumer())
        assert metrics.failing_witnesses._value.get() == 1


async def test_recovered_witness_is_compared_while_another_is_down() -> None:
    """Each witness is compared separately, so a missing witness must not prevent the comparison with others."""
    gone, recovered = WitnessInMemory(), WitnessInMemory(anchor(5, ends={"state": (11, 10)}))
    gone.is_down = recovered.is_down = True
    guard, metrics = guard_of(recovered, gone, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, BudgetProcessorStub(), FixedEndsConsumer())
        recovered.is_down = False
        await until(lambda: metrics.rolled_back._value.get() == 1)
        assert metrics.failing_witnesses._value.get() == 1
        with pytest.raises(RolledBackError):
            guard.note_committed(0, BudgetProcessorStub())


async def test_recovered_witness_gets_anchors_while_another_is_down() -> None:
    gone, recovered, processor = WitnessInMemory(), WitnessInMemory(), BudgetProcessorStub()
    gone.is_down = recovered.is_down = True
    guard, _ = guard_of(recovered, gone, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        processor.trail_head = anchor(5).head
        await guard.check(0, processor, FixedEndsConsumer())
        recovered.is_down = False
        await until(lambda: recovered.anchors)


async def test_witness_read_during_a_comparison_is_compared_too() -> None:
    """Another partition reads the witness while this one waits for the ends of its topics."""
    waiting, released = asyncio.Event(), asyncio.Event()

    class Slow(FixedEndsConsumer):
        async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            found = await super().end_offsets(partitions)
            if partitions == [TopicPartition(TOPICS.control, 0)]:
                waiting.set()
                await released.wait()
            return found

    recovered = WitnessInMemory(anchor(5, ends={"state": (11, 10)}))
    recovered.is_down = True
    guard, metrics = guard_of(recovered, WitnessInMemory(), anchor_seconds=0.01)
    async with guard:
        checking = asyncio.create_task(guard.check(0, BudgetProcessorStub(), Slow()))
        await waiting.wait()
        recovered.is_down = False
        await guard.check(1, BudgetProcessorStub(), FixedEndsConsumer())
        released.set()
        await checking
        await until(lambda: metrics.rolled_back._value.get() == 1)


@pytest.mark.parametrize("entries", [0, 5])
async def test_empty_witness_is_reported_only_beside_a_trail(entries: int) -> None:
    """It stops nothing and gets the next anchor, but the report stays until the process restarts."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    processor.trail_head = anchor(entries).head
    guard, metrics = guard_of(witness, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        await until(lambda: witness.anchors)
        assert metrics.empty_witnesses._value.get() == (entries > 0)
        assert metrics.failing_witnesses._value.get() == 0


async def test_witness_emptied_while_the_service_runs_is_reported() -> None:
    """The next session of the process compares with the witness again."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    processor.trail_head = anchor(0).head
    guard, metrics = guard_of(witness, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        await until(lambda: witness.anchors)
        processor.trail_head = anchor(5).head
        guard.note_committed(0, processor)
        await until(lambda: len(witness.anchors) == 2)
        assert metrics.empty_witnesses._value.get() == 0
        witness.anchors.clear()
        await guard.check(0, processor, FixedEndsConsumer())
        assert metrics.empty_witnesses._value.get() == 1


async def test_anchors_stay_in_order_after_a_clock_goes_back() -> None:
    """A witness sorts anchors by time, so a later anchor must not get an earlier time than one of a clock that was ahead."""
    ahead = 9_000_000_000_000
    witness, processor = WitnessInMemory(anchor(0, written=ahead)), BudgetProcessorStub()
    processor.trail_head = anchor(0).head
    guard, _ = guard_of(witness, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        for entries in (1, 2):
            processor.trail_head = anchor(entries).head
            guard.note_committed(0, processor)
            await until(lambda: witness.anchors[-1].head.entries == entries)  # noqa: B023
    times = [one.written for one in witness.anchors[1:]]
    assert times == list(range(ahead + 1, ahead + 1 + len(times)))


async def test_anchoring_continues_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported as a failing witness until an anchor is written again."""
    ends, failures = read_ends, 0
    is_failing = True

    async def fail(*given: Any) -> dict[str, tuple[int, ...]]:
        nonlocal failures
        if is_failing:
            failures += 1
            raise ValueError
        return await ends(*given)

    monkeypatch.setattr(witness_guards, "read_ends", fail)
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    processor.trail_head = anchor(5).head
    guard, metrics = guard_of(witness, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        await until(lambda: failures > 1)
        assert metrics.failing_witnesses._value.get() == 1
        is_failing = False
        await until(lambda: witness.anchors)
        await until(lambda: metrics.failing_witnesses._value.get() == 0)


async def test_partition_of_another_process_is_not_reported() -> None:
    """The alert ends when another process owns the partition, or when the topics are newer."""
    guard, metrics = guard_of(WitnessInMemory(anchor(5, ends={"control": (11, 11)})))
    async with guard:
        for partition in range(2):
            with pytest.raises(RolledBackError):
                await guard.check(partition, BudgetProcessorStub(), FixedEndsConsumer())
        assert metrics.rolled_back._value.get() == 2
        guard.forget(0)
        await guard.check(1, BudgetProcessorStub(), FixedEndsConsumer(11))
        assert metrics.rolled_back._value.get() == 0


async def test_ledger_of_another_process_is_not_anchored() -> None:
    """A spare keeps running after it has lost the ledger; its old head must not follow the new owner's."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    processor.trail_head = anchor(4).head
    guard, _ = guard_of(witness, kind=AnchoringGuard, anchor_seconds=0.01)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        await until(lambda: len(witness.anchors) == 1)
        guard.forget(0)
        guard._watched[0].last_written = None
        await asyncio.sleep(0.1)
        assert len(witness.anchors) == 1


async def test_anchor_that_was_read_once_binds_while_its_witness_is_down() -> None:
    witness = WitnessInMemory(anchor(5, ends={"state": (11,)}))
    guard, _ = guard_of(witness)
    async with guard:
        for is_down in (False, True):
            witness.is_down = is_down
            with pytest.raises(RolledBackError):
                await guard.check(0, BudgetProcessorStub(), FixedEndsConsumer())


async def test_witness_that_hangs_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls fail at once and take no further thread."""
    monkeypatch.setattr(witness_guards, "CALL_SECONDS", 0.05)
    released, calls = threading.Event(), []

    class Hung(WitnessInMemory):
        def read_newest(self, installation: str) -> list[Anchor]:
            calls.append(installation)
            released.wait(60)
            return []

    guard, metrics = guard_of(Hung())
    try:
        async with guard:
            for _ in range(3):
                await guard.check(0, BudgetProcessorStub(), FixedEndsConsumer())
            assert calls == ["sotto"]
            assert metrics.failing_witnesses._value.get() == 1
    finally:
        released.set()


async def test_read_waits_for_a_write_of_the_same_witness() -> None:
    """A slow witness does not count as failing."""
    released = threading.Event()

    class Slow(WitnessInMemory):
        def write(self, anchor: Anchor) -> None:
            released.wait(60)
            super().write(anchor)

    watched = WatchedWitness(Slow())
    writing = asyncio.create_task(watched.write(anchor(1)))
    await asyncio.sleep(0)
    reading = asyncio.create_task(watched.read("sotto", 1))
    await asyncio.sleep(0)
    released.set()
    assert await writing
    assert [one.head.entries for one in await reading or ()] == [1]
    assert not watched.is_failing


async def test_first_entry_is_anchored_at_once() -> None:
    """A witness that is still empty looks like one whose anchors were deleted; the next anchor is an hour away."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    guard, _ = guard_of(witness, kind=AnchoringGuard, anchor_seconds=3600.0)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        processor.trail_head = anchor(1).head
        guard.note_committed(0, processor)
        await until(lambda: witness.anchors)


async def test_large_grants_are_anchored_at_once_and_small_ones_later() -> None:
    """The next anchor is an hour away, but an orderly stop writes the last head."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    guard, _ = guard_of(witness, kind=AnchoringGuard, anchor_seconds=3600.0)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        for entries, granted in ((1, None), (2, 0.5), (3, 1.0), (4, 0.9)):
            processor.trail_head = TrailHead(entries=entries, digest=f"{entries:064x}", time=0)
            processor.granted = granted
            guard.note_committed(0, processor)
            if granted == 1.0:
                await until(lambda: witness.anchors)
    assert [one.head.entries for one in witness.anchors] == [3, 4]
    assert witness.anchors[0].ends == {"state": (10, 10), "control": (10, 10), "ledger": (10,)}


async def test_heads_are_stamped_beside_the_anchors(tmp_path: Path) -> None:
    """An authority that is down is reported and prevents no anchor; the next anchor tries it again."""
    witness, processor = WitnessInMemory(), BudgetProcessorStub()
    with time_stamp_authority(tmp_path / "authority") as authority:
        stamps = tmp_path / "stamps.jsonl"
        own = {"timestamp_authority": authority.address, "timestamp_file": str(stamps)}
        guard, metrics = guard_of(
            witness, kind=AnchoringGuard, anchor_seconds=0.01, timestamp_seconds=3600.0, **own
        )
        authority.is_down = True
        async with guard:
            await guard.check(0, processor, FixedEndsConsumer())
            for entries in range(1, 4):
                processor.trail_head = TrailHead(entries=entries, digest=f"{entries:064x}", time=0)
                guard.note_committed(0, processor)
                await until(lambda: len(witness.anchors) == entries)  # noqa: B023  (awaited at once)
                if entries == 1:
                    await until(lambda: metrics.failing_witnesses._value.get() == 1)
                    authority.is_down = False
                if entries == 2:
                    await until(lambda: metrics.failing_witnesses._value.get() == 0)
        [found] = FileWitness(stamps).read_all()
        assert TimeStampVerifier(authority.roots).find_time(found) is not None
    assert authority.stamps == 1


async def test_generation_of_an_accepted_rollback_is_continued() -> None:
    head = TrailHead(entries=0, digest="0" * 64, time=0)
    witness = WitnessInMemory(
        anchor(9), Anchor(installation="sotto", generation=3, written=1, head=head, reason="restored")
    )
    processor = BudgetProcessorStub()
    guard, _ = guard_of(witness, kind=AnchoringGuard)
    async with guard:
        await guard.check(0, processor, FixedEndsConsumer())
        processor.trail_head, processor.granted = head.model_copy(update={"entries": 1}), 2.0
        guard.note_committed(0, processor)
        await until(lambda: len(witness.anchors) == 3)
    assert witness.anchors[-1].generation == 3


@pytest.mark.parametrize("has_witness", [False, True])
def test_service_without_a_witness_logs_it(tmp_path: Path, has_witness: bool) -> None:
    """Workers without the setting of the budget service do not detect a rollback."""
    witnesses = f"file://{tmp_path}/anchors" if has_witness else ""
    with capture_logs() as logged:
        witness_guard(Settings(witnesses=witnesses), TOPICS, ServiceHealth("worker"))
    assert [one["event"].startswith("no witness; ") for one in logged] == [True] * (not has_witness)
