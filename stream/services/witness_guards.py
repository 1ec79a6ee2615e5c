"""Compares restored partitions with the anchors of witnesses, and anchors the trail's head.

A witness that cannot be read or written is reported and never stops a service. A partition that is
older than an anchor processes nothing until newer topics are restored or the rollback is accepted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas import TrailHead, trail_codec
from schemas.wire import MalformedEventError
from stream.budget.trail_verification import AnchoredTrail
from stream.diagnostics import get_logger
from stream.engine.health import Metrics
from stream.engine.partition_input import consume_exception
from stream.engine.restore import WORKER_TOPICS, create_reader, read_ends, read_span, read_to_end
from stream.engine.session import SessionGuard
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.processing.protocol import AnchoredProcessor, InputRefusedError, Processor
from stream.processing.topic_names import Topics
from stream.settings import Settings
from stream.witnesses.anchor import (
    Anchor,
    Witness,
    WitnessError,
    largest_end,
    newest_generation,
    next_anchor_time,
    read_undamaged,
)
from stream.witnesses.witness_kinds import TimeStamper

CALL_SECONDS: Final = 10.0
"""Longest wait for one call of a witness."""
FIRST_TRIES: Final = 3
"""Number of tries when a process reads a witness for the first time."""
RETRY_SECONDS: Final = 1.0
READING_AGE_SECONDS: Final = 10.0
"""Partitions of one process whose sessions begin within this time share one reading of the witnesses."""
LEAST_ANCHOR_SECONDS: Final = 1.0
"""Minimum number of seconds between two anchors."""
LAST_ANCHOR_SECONDS: Final = 5.0
"""Longest wait for the last anchor when the service stops."""
FIRST_SPAN: Final = 1_000
"""Number of offsets at the trail's end that are read first; the span doubles until it has the anchored entry."""

REMEDY: Final = "restore newer copies, or see 'sotto ledger accept-rollback'"

Result = TypeVar("Result")
log = get_logger("witness")


class RolledBackError(InputRefusedError):
    """Topics are older than an anchor of a witness."""


class WatchedWitness:
    """A witness with a separate thread, and the state of its last call."""

    def __init__(self, witness: Witness) -> None:
        self.name = witness.name
        self.is_failing = False
        self.is_damaged = False
        self.generation = 0
        self.latest_time = 0
        self.last_written: tuple[TrailHead, Mapping[str, Sequence[int]]] | None = None
        self._witness = witness
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="witness")
        self._call: asyncio.Future[Any] | None = None

    async def read(self, installation: str, tries: int) -> list[Anchor] | None:
        """Return the newest generation of anchors; None if the witness cannot be read in ``tries`` tries."""
        while (outcome := await self._run("read", lambda: read_undamaged(self._witness, installation))) is None:
            if (tries := tries - 1) <= 0:
                return None
            await asyncio.sleep(RETRY_SECONDS)
        found, damage = outcome
        self.is_damaged = bool(damage)
        if damage:
            log.error("witness failed", witness=self.name, action="read", reason=damage)
        self.latest_time = max([self.latest_time, *(one.written for one in found)])
        anchors = newest_generation(found)
        self.generation = anchors[0].generation if anchors else 0
        return anchors

    async def write(self, anchor: Anchor) -> bool:
        """Write an anchor; return whether it was written."""

        def write() -> bool:
            self._witness.write(anchor)
            return True

        self.latest_time = max(self.latest_time, anchor.written)
        return await self._run("write", write) is not None

    async def _run(self, action: str, call: Callable[[], Result]) -> Result | None:
        """Run a call in the thread; None if it fails or does not end in time."""
        try:
            if self._call is not None and not self._call.done():
                _, unfinished = await asyncio.wait({self._call}, timeout=CALL_SECONDS)
                if unfinished:
                    raise WitnessError(f"{self.name}: an earlier call has not ended")  # noqa: TRY301
            future = asyncio.get_running_loop().run_in_executor(self._executor, call)
            future.add_done_callback(consume_exception)
            self._call = future
            async with asyncio.timeout(CALL_SECONDS):
                result = await asyncio.shield(future)
        except Exception as error:  # noqa: BLE001  (no failure of a witness may stop the service)
            reason = str(error) if isinstance(error, WitnessError) else type(error).__name__
            log.error("witness failed", witness=self.name, action=action, reason=reason)  # noqa: TRY400  (no message of another error)
            self.is_failing = True
            return None
        self.is_failing = False
        return result


@dataclass(eq=False)
class WitnessGuard(SessionGuard):
    """Refuses a partition if ``state`` or ``control`` ends before an anchored offset."""

    settings: Settings
    topics: Topics
    witnesses: Sequence[Witness]
    metrics: Metrics
    clients: Clients = KAFKA

    _compared_topics: ClassVar[tuple[str, ...]] = WORKER_TOPICS

    def __post_init__(self) -> None:
        self._watched = [WatchedWitness(one) for one in self.witnesses]
        self._services = [*self._watched]
        """All services outside Kafka whose failure is reported."""
        self._refusals: dict[int, RolledBackError] = {}
        self._anchors: dict[WatchedWitness, list[Anchor]] = {}
        """The anchors of each witness that this process could read, as of its last reading."""
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._later_checks: dict[int, asyncio.Task[None]] = {}

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the checks that wait for a witness."""
        await _cancel(self._later_checks.values())

    async def check(self, partition: int, processor: Processor, consumer: Consumer) -> None:
        """Compare the partition with all witnesses that can be read, and later with the others."""
        del processor
        if (later := self._later_checks.pop(partition, None)) is not None:
            await _cancel([later])
        await self._read_witnesses()
        compared = len(self._anchors)
        try:
            await self._compare(partition, consumer)
        except RolledBackError as error:
            self._refuse(partition, error)
            raise
        self._refuse(partition, None)
        if compared < len(self._watched):
            self._later_checks[partition] = asyncio.create_task(self._check_later(partition, consumer, compared))

    def forget(self, partition: int) -> None:
        """Forget a partition, so that only its new owner reports it."""
        if (later := self._later_checks.pop(partition, None)) is not None:
            later.cancel()
        self._refuse(partition, None)

    def note_committed(self, partition: int, processor: Processor) -> None:
        """End a session that began before a witness could be read, if that witness has a later anchor."""
        del processor
        if (refusal := self._refusals.get(partition)) is not None:
            raise refusal

    async def _check_later(self, partition: int, consumer: Consumer, compared: int) -> None:
        """Compare the partition again each time that a further witness has been read."""
        while compared < len(self._watched):
            await asyncio.sleep(self.settings.anchor_seconds)
            await self._read_witnesses()
            if (known := len(self._anchors)) == compared:
                continue
            try:
                await self._compare(partition, consumer)
            except RolledBackError as error:
                self._refuse(partition, error)
                return
            except (KafkaError, OSError):
                continue
            compared = known

    async def _compare(self, partition: int, consumer: Consumer) -> None:
        """Raise RolledBackError if a witness has a later anchor of this partition."""
        for name in self._compared_topics:
            place = TopicPartition(getattr(self.topics, name), partition)
            end = (await consumer.end_offsets([place]))[place]
            for witness, anchors in self._anchors.items():
                if (anchored := largest_end(anchors, name, partition)) > end:
                    latest = next(one for one in anchors if largest_end([one], name, partition) == anchored)
                    raise RolledBackError(
                        f"{place.topic} partition {partition} ends at offset {end}, but offset {anchored} was anchored "
                        f"({witness.name}, last {latest.time}); {REMEDY}"
                    )

    async def _read_witnesses(self) -> None:
        """Read the witnesses if the last reading is old; a process tries its first reading several times."""
        async with self._reading:
            if self._read_at is not None and time.monotonic() - self._read_at < READING_AGE_SECONDS:
                return
            tries = FIRST_TRIES if self._read_at is None else 1
            read = await asyncio.gather(*(one.read(self.settings.prefix, tries) for one in self._watched))
            self._anchors |= {
                one: anchors for one, anchors in zip(self._watched, read, strict=True) if anchors is not None
            }
            self._read_at = time.monotonic()
            self._show_failures()

    def _refuse(self, partition: int, error: RolledBackError | None) -> None:
        if error is None:
            self._refusals.pop(partition, None)
        else:
            log.error("rolled back", partition=partition, reason=str(error))
            self._refusals[partition] = error
        self.metrics.rolled_back.set(len(self._refusals))

    def _show_failures(self) -> None:
        self.metrics.failing_witnesses.set(sum(one.is_failing or one.is_damaged for one in self._services))


class AnchoringGuard(WitnessGuard):
    """Refuses a ledger whose trail lacks an anchored head, and writes anchors of the committed head."""

    _compared_topics = ("ledger",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._head: TrailHead | None = None
        self._compared: set[WatchedWitness] = set()
        """The witnesses with whose anchors the trail of the current session was compared."""
        self._empty: set[WatchedWitness] = set()
        """The witnesses that had no anchor of a trail with entries; they are reported until the process restarts."""
        address, path = self.settings.timestamp_authority, Path(self.settings.timestamp_file)
        self._stamper = WatchedWitness(TimeStamper(address, path)) if address else None
        if self._stamper is not None:
            self._services.append(self._stamper)
        self._stamped_at = float("-inf")
        self._write_now = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop writing; if the service stops without an error, anchor the last head."""
        await super().__aexit__(kind)
        writing, self._writing = self._writing, None
        if writing is None:
            return
        await _cancel([writing])
        if kind is None:
            with suppress(TimeoutError, KafkaError, OSError):
                async with asyncio.timeout(LAST_ANCHOR_SECONDS):
                    await self._write_anchors()

    async def check(self, partition: int, processor: Processor, consumer: Consumer) -> None:
        """Compare the trail with all witnesses that can be read, then anchor its head at once."""
        self._compared.clear()
        self._head = processor.trail_head if isinstance(processor, AnchoredProcessor) else None
        await super().check(partition, processor, consumer)
        self._write_now.set()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_regularly(), name="anchors")

    def forget(self, partition: int) -> None:
        """Forget the ledger, whose new owner anchors its head; an older head would be written after that."""
        super().forget(partition)
        self._head = None

    def note_committed(self, partition: int, processor: Processor) -> None:
        """Remember the head for the next anchor; after a large grant, or for an empty witness, write it at once."""
        super().note_committed(partition, processor)
        if isinstance(processor, AnchoredProcessor):
            self._head = processor.trail_head
            granted = processor.take_largest_grant()
            has_empty_witness = not all(self._anchors[one] for one in self._compared)
            if has_empty_witness or (granted is not None and granted >= self.settings.anchor_epsilon):
                self._write_now.set()

    async def _compare(self, partition: int, consumer: Consumer) -> None:
        await super()._compare(partition, consumer)
        for witness, anchors in self._anchors.items():
            if witness not in self._compared:
                await self._compare_trail(witness, anchors)
                self._compared.add(witness)

    async def _write_anchors(self) -> None:
        """Write the committed head and the topics' ends to each compared witness that lacks them."""
        if (head := self._head) is None:
            return
        ends = await read_ends(self.settings, self.topics, self.clients)
        if self._head is None:
            return  # the ledger was lost meanwhile
        for witness in [one for one in self._watched if one in self._compared]:
            if witness.last_written != (head, ends):
                anchor = Anchor(
                    installation=self.settings.prefix,
                    generation=witness.generation,
                    written=next_anchor_time(witness.latest_time),
                    head=head,
                    ends=ends,
                )
                if await witness.write(anchor):
                    witness.last_written = (head, ends)
                    # A reading from before this anchor must not look like an emptied witness.
                    self._anchors[witness] = self._anchors[witness] or [anchor]
        await self._stamp(head)
        self._show_failures()

    async def _stamp(self, head: TrailHead) -> None:
        """Request a time stamp of a new head if the last stamp is old enough; a failure is only reported."""
        stamper, pause = self._stamper, self.settings.timestamp_seconds
        if stamper is None or stamper.last_written == (head, {}) or time.monotonic() - self._stamped_at < pause:
            return
        generation = max((one.generation for one in self._watched), default=0)
        written = next_anchor_time(stamper.latest_time)
        anchor = Anchor(installation=self.settings.prefix, generation=generation, written=written, head=head)
        if await stamper.write(anchor):
            stamper.last_written, self._stamped_at = (head, {}), time.monotonic()

    async def _write_regularly(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.anchor_seconds):
                    await self._write_now.wait()
            self._write_now.clear()
            try:
                await self._write_anchors()
            except (KafkaError, OSError) as error:
                log.warning("ends of topics not read; anchors are written later", error=type(error).__name__)
            except Exception as error:  # noqa: BLE001  (anchoring must not end unnoticed)
                log.error("anchors not written", error=type(error).__name__)  # noqa: TRY400  (no message of another error)
                for witness in self._watched:
                    witness.is_failing, witness.last_written = True, None
                self._show_failures()
            await asyncio.sleep(LEAST_ANCHOR_SECONDS)

    async def _compare_trail(self, witness: WatchedWitness, anchors: Sequence[Anchor]) -> None:
        """Raise RolledBackError unless the trail contains the longest anchored head and the ledger's head."""
        if not anchors:
            if self._head is not None and self._head.entries:
                self._empty.add(witness)
                self.metrics.empty_witnesses.set(len(self._empty))
                log.error(
                    "witness has no anchor of this installation (SOTTO_PREFIX) beside a trail; if it is not new, its anchors were deleted",
                    witness=witness.name,
                )
            return
        check = AnchoredTrail(anchors[0].head, self._head)
        if not check.is_decided:
            await self._follow_trail(check)
        if (finding := check.describe_difference()) is not None:
            raise RolledBackError(
                f"nothing is granted: {finding} ({witness.name}, anchored {anchors[0].time}); {REMEDY}"
            )
        log.info("trail contains anchor", witness=witness.name, entries=anchors[0].head.entries)

    async def _follow_trail(self, check: AnchoredTrail) -> None:
        """Add the trail's entries to a check, from the anchored entry on."""
        partition = TopicPartition(self.topics.trail, 0)
        async with create_reader(self.settings, self.clients, fetch_max_wait_ms=10) as consumer:
            consumer.assign([partition])
            beginning = (await consumer.beginning_offsets([partition]))[partition]
            end = (await consumer.end_offsets([partition]))[partition]
            span = FIRST_SPAN
            while (start := max(beginning, end - span)) > beginning:
                if await _number_of_first_entry(consumer, partition, start, end) <= check.first_entry:
                    break
                span *= 2
            async for records in read_to_end(consumer, partition, self.settings.batch_events, start):
                for record in records:
                    check.add_entry(record.value)


async def _number_of_first_entry(consumer: Consumer, partition: TopicPartition, start: int, end: int) -> int:
    """Return the number of the first entry at or after an offset; a large number if there is none."""
    async with aclosing(read_span(consumer, partition, start, end, max_records=1)) as batches:
        async for records in batches:
            for record in records:
                with suppress(MalformedEventError):
                    return trail_codec.decode(record.value).number
    return sys.maxsize


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
