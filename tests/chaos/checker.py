"""Checks the promises on all committed records, after any faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from schemas import (
    MAX_DEFINITION_BYTES,
    Amount,
    Answer,
    Charge,
    Control,
    GrantRecord,
    LedgerRecord,
    Receipt,
    RetiredNames,
    RetiredTotals,
    Source,
    SourceRecord,
)
from schemas.answers import HEADER_PREFIX
from schemas.wire import Codec
from stream.engine.restore import create_reader, read_to_end
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    PARTS_PER_CHARGE,
    charged_answers,
    realised_cost,
    to_amount,
)
from stream.privacy.ledger.retirement import NameDigests
from stream.privacy.noise.keys import NoiseKey
from stream.processing.dead_letters import says_exhausted
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.settings import Settings
from stream.tables.store import TableStore
from stream.worker.fair_shares import Limits
from tests.chaos.budgets import check_budgets
from tests.chaos.replay import (
    Installation,
    Logs,
    answers_codec,
    as_read,
    check_replay,
    definitions_in,
    is_charged,
    read_control,
    read_ledger,
)
from tests.chaos.retired import check_retired
from tests.chaos.trails import check_trail

_charges: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)

ROUNDING = 1e-9
"""Amounts are shown as floating-point numbers, whose sums may differ in the last digits."""


@dataclass(frozen=True)
class Findings:
    """All committed records, and all violations in them."""

    answers: list[Answer]
    sources: dict[str, SourceRecord]
    grants: dict[str, GrantRecord]
    violations: list[str]


async def committed(settings: Settings, topic: str, partition: int) -> list[RecordLike]:
    """Return all committed records of a partition."""
    consumer = create_reader(settings)
    await consumer.start()
    try:
        batches = [batch async for batch in read_to_end(consumer, TopicPartition(topic, partition), 5000)]
    finally:
        await consumer.stop()
    return [record for batch in batches for record in batch]


async def check(
    settings: Settings, topics: Topics, key: NoiseKey, asked: Sequence[str], *, same_version: bool = True
) -> Findings:
    """Read every topic of an installation and examine it; reasons are not compared if several versions have answered."""
    wide = (topics.queries, topics.control, topics.answers, topics.state)
    places = [(topic, partition) for topic in wide for partition in range(topics.partitions)]
    serial = (topics.requests, topics.charges, topics.ledger, topics.trail)
    places += [(topic, partition) for topic in serial for partition in range(LEDGER_PARTITIONS)]
    logs = {place: await committed(settings, *place) for place in places}
    limits = Limits.from_seconds(settings.work_outstanding, settings.work_rate)
    tables = TableStore.keyed_by(key)
    return examine(Installation(topics, key, tables, limits=limits, same_version=same_version), logs, asked)


def examine(installation: Installation, logs: Logs, asked: Iterable[str], removed: Logs | None = None) -> Findings:
    """Check answers against the ids asked, the ledger against budgets, and a full replay against the answers.

    ``asked`` has an id once for each event with this id. ``removed`` has the records that compaction has removed from control.
    """
    removed = removed or {}
    topics = installation.topics
    logs = as_read(logs, topics)
    answers = [
        answers_codec.decode(record.value)
        for partition in range(topics.partitions)
        for record in logs.get((topics.answers, partition), ())
    ]
    ledger = [record for (topic, _), records in logs.items() if topic == topics.ledger for record in records]
    written = [(record.key, read_ledger(record.value)) for record in ledger if record.value is not None]
    latest = {record.key: record.value for record in ledger}
    entries = {key: read_ledger(value) for key, value in latest.items() if value is not None}
    sources = {one.source.source: one for _, one in written if isinstance(one, SourceRecord)}
    # The grants of retired streams may be compacted away, or still be there.
    grants = {one.spec.stream: one for _, one in written if isinstance(one, GrantRecord)}
    retired = NameDigests()
    for one in entries.values():
        if isinstance(one, RetiredNames):
            retired.restore(one)
    control = [record for (topic, _), records in logs.items() if topic == topics.control for record in records]
    charges = [record for (topic, _), records in logs.items() if topic == topics.charges for record in records]
    extended = {name for name, grant in grants.items() if grant.extensions}
    violations = check_answers(answers, asked, extended)
    violations += check_ledger(answers, sources, grants, entries.values())
    violations += check_budgets([entry for _, entry in written], entries.values())
    violations += check_charges([_charges.decode(record.value) for record in charges], grants, retired)
    definitions = definitions_in([*(record for records in removed.values() for record in records), *control])
    violations += check_grants([read_control(record.value or b"") for record in definitions], grants, retired)
    violations += check_retired(logs, topics, retired, same_version=installation.same_version)
    violations += [
        f"{one.spec.stream} is retired, and its grant was written again"
        for one in entries.values()
        if isinstance(one, GrantRecord) and retired.has("stream", one.spec.stream)
    ]
    violations += check_receipts([entry for _, entry in written])
    violations += check_extensions([entry for _, entry in written], grants)
    trail, requests = (logs.get((topic, 0), ()) for topic in (topics.trail, topics.requests))
    violations += check_trail(trail, requests, [entry for _, entry in written], entries.values())
    for partition in range(topics.partitions):
        gone = removed.get((topics.control, partition), ())
        violations += check_replay(installation, logs, partition, retired, gone)
    return Findings(answers, sources, grants, violations)


def check_answers(answers: Iterable[Answer], asked: Iterable[str], extended: Collection[str] = ()) -> list[str]:
    """Check that each event is answered once, that indices have no gap, and that nothing is answered after a halt.

    An ``extended`` stream may answer again after it was exhausted.
    """
    violations = []
    answers = list(answers)
    times, wanted = Counter(answer.id for answer in answers), Counter(asked)
    violations += [
        f"{query} was asked {wanted[query]} times and answered {times[query]} times"
        for query in wanted
        if times[query] != wanted[query]
    ]
    violations += [f"{query} was answered and never asked" for query in times.keys() - wanted.keys()]
    indices: dict[str, list[int]] = defaultdict(list)
    halted: set[str] = set()
    for answer in answers:
        if says_exhausted(answer.reason) and answer.tops_left:
            violations.append(
                f"{answer.stream} had run dry at {answer.id} with {answer.tops_left} charged answers left"
            )
        if answer.outcome == "halted":
            if answer.stream not in extended or not says_exhausted(answer.reason):
                halted.add(answer.stream)
        elif answer.index is not None:
            indices[answer.stream].append(answer.index)
            if answer.stream in halted:
                violations.append(f"{answer.stream} answered {answer.id} after it had halted")
    violations += [
        f"{stream} has answers numbered {seen[:3]}… not 0, 1, 2, …"
        for stream, seen in indices.items()
        if seen != list(range(len(seen)))
    ]
    return violations


def check_ledger(
    answers: Iterable[Answer],
    sources: Mapping[str, SourceRecord],
    grants: Mapping[str, GrantRecord],
    latest: Collection[LedgerRecord],
) -> list[str]:
    """Check that spent ≤ granted ≤ budget, that charged answers ≤ cutoff, and that the ledger has the figures that consumers saw."""
    violations = []
    answers = list(answers)
    tops = Counter(answer.stream for answer in answers if is_charged(answer))
    prices: dict[str, float] = defaultdict(float)
    for answer in answers:
        prices[answer.stream] += (answer.price or 0.0) if is_charged(answer) else 0.0
    spent = {answer.stream: answer.spent for answer in answers if answer.spent is not None}
    for name, grant in grants.items():
        cutoff = charged_answers(grant.calibration, grant.extensions)
        if cutoff and tops[name] * PARTS_PER_CHARGE + grant.surplus > cutoff * PARTS_PER_CHARGE:
            violations.append(f"{name} showed {tops[name]} charged answers, cutoff {cutoff}")
        if prices[name] > grant.spent.epsilon + ROUNDING:
            violations.append(f"{name} showed prices of {prices[name]} in all, and spent {grant.spent.epsilon}")
        if tops[name] != grant.tops:
            violations.append(f"{name} showed {tops[name]} charged answers, the ledger has {grant.tops}")
        if grant.spent.epsilon > grant.cost.epsilon + ROUNDING:
            violations.append(f"{name} spent {grant.spent.epsilon} of {grant.cost.epsilon}")
        if grant.refunded.epsilon > 0.0 and grant.ending != "closed":
            violations.append(f"{name} was refunded, and the ledger has not closed it")
        if name in spent and spent[name] not in _spent_by(grant, sources[grant.spec.source].source):
            violations.append(f"{name} showed {spent[name]} spent, the ledger has {grant.spent}")
    for source in (one for one in latest if isinstance(one, SourceRecord)):
        violations += _check_source(source, latest)
    return violations


def _spent_by(grant: GrantRecord, source: Source) -> list[Amount]:
    """Return the charges that a stream's last answer may state; its worker may know only some extensions that the ledger has."""
    return [
        to_amount(
            realised_cost(
                grant.calibration,
                source.accountant,
                grant.answered,
                grant.tops,
                grant.surplus,
                grant.extensions[:known],
            ),
            source,
        )
        for known in range(len(grant.extensions))
    ] + [grant.spent]


def _check_source(source: SourceRecord, latest: Iterable[LedgerRecord]) -> list[str]:
    name = source.source.source
    held = source.granted.epsilon - source.refunded.epsilon
    granted = spent = 0.0
    for one in latest:
        if isinstance(one, GrantRecord) and one.spec.source == name:
            granted, spent = granted + one.cost.epsilon, spent + one.spent.epsilon
        elif isinstance(one, RetiredTotals) and one.source == name:
            granted += int(one.own.cost.loss) / EPSILON_UNITS
            spent += int(one.own.spent.loss) / EPSILON_UNITS
    violations = []
    if held > source.source.epsilon + ROUNDING and source.period is None:
        violations.append(f"{name} granted {held} of {source.source.epsilon}")
    if source.spent.epsilon > held + ROUNDING:
        violations.append(f"{name} spent {source.spent.epsilon} of {held} granted")
    if abs(source.granted.epsilon - granted) > ROUNDING:
        violations.append(f"{name} granted {source.granted.epsilon}, which is not the sum of its grants")
    if abs(source.spent.epsilon - spent) > ROUNDING:
        violations.append(f"{name} spent {source.spent.epsilon}, which is not the sum over its grants")
    return violations


def check_letters(logs: Logs, topics: Topics, wanted: Mapping[tuple[str, int, int], int]) -> list[str]:
    """Check that each unreadable batch has the number of dead letters in ``wanted``, and other batches have none."""
    found: Counter[tuple[str, int, int]] = Counter()
    for (topic, _), records in logs.items():
        for record in records if topic == topics.rejected else ():
            fields = {name.removeprefix(HEADER_PREFIX): value.decode() for name, value in record.headers}
            if "last.offset" in fields:
                found[fields["topic"], int(fields["partition"]), int(fields["offset"])] += 1
    return [
        f"{place} was refused unread {found[place]} times, not {wanted.get(place, 0)}"
        for place in sorted(found.keys() | wanted.keys())
        if found[place] != wanted.get(place, 0)
    ]


def check_charges(charges: Iterable[Charge], grants: Mapping[str, GrantRecord], retired: NameDigests) -> list[str]:
    """Check that no charge exceeds its grant or belongs to a stream that was never granted."""
    violations = []
    for charge in charges:
        grant = grants.get(charge.stream)
        if grant is None and retired.has("stream", charge.stream):
            continue
        if grant is None or grant.identity.incarnation != charge.incarnation:
            violations.append(f"{charge.stream} was charged and never granted")
        elif charge.spent.epsilon > grant.cost.epsilon + ROUNDING:
            violations.append(f"{charge.stream} was charged {charge.spent.epsilon} of {grant.cost.epsilon}")
    return violations


def check_grants(control: Iterable[Control], grants: Mapping[str, GrantRecord], retired: NameDigests) -> list[str]:
    """Check that control has exactly one opening of each grant."""
    definitions: dict[str, set[str]] = defaultdict(set)
    for definition in control:
        definitions[definition.spec.stream].add(definition.identity.incarnation)
    return [
        f"{stream} was opened {len(definitions[stream])} times, not as the ledger has it"
        for stream in definitions.keys() | grants.keys()
        if stream in grants or not retired.has("stream", stream)
        if stream not in grants or definitions[stream] != {grants[stream].identity.incarnation}
        if definitions[stream] or not retired.has("stream", stream)
    ]


def check_receipts(ledger: Iterable[LedgerRecord]) -> list[str]:
    """Check that all receipts of a repeated request are the same."""
    first: dict[tuple[str, str], Receipt] = {}
    return [
        f"request {one.request} has two receipts: {first[one.request, one.digest].outcome} and {one.outcome}"
        for one in ledger
        if isinstance(one, Receipt) and first.setdefault((one.request, one.digest), one) != one
    ]


def check_extensions(ledger: Iterable[LedgerRecord], grants: Mapping[str, GrantRecord]) -> list[str]:
    """Check that each extension has one receipt for its answers, and that the grant's cost is that of its opening and extensions."""
    added: dict[str, list[int]] = defaultdict(list)
    granted: dict[str, float] = defaultdict(float)
    receipts = {(one.request, one.digest): one for one in ledger if isinstance(one, Receipt)}
    for receipt in receipts.values():
        if receipt.answers is not None and receipt.granted is not None:
            added[receipt.stream or ""].append(receipt.answers)
            granted[receipt.stream or ""] += receipt.granted.epsilon
    violations = []
    for name in (added.keys() & grants.keys()) | {name for name, grant in grants.items() if grant.extensions}:
        grant = grants[name]
        if sorted(added[name]) != sorted(one.answers for one in grant.extensions):
            violations.append(f"{name} has receipts for {added[name]}, and was extended by {grant.extensions}")
        if not 0.0 <= grant.cost.epsilon - granted[name] <= grant.spec.epsilon + ROUNDING:
            violations.append(f"{name} costs {grant.cost.epsilon}, and was extended for {granted[name]}")
    return violations
