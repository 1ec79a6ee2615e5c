"""Verifies that the grants of a ledger follow from the requests in its trail.

The chain of digests reveals each change of an entry. A person who can rewrite the whole trail and the
ledger, such as the broker's administrator, can make a new chain. This is detected if a head of the old
chain was noted elsewhere. ``AnchoredTrail`` finds an anchored head in the trail; it compares no grants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import schemas
from schemas.wire import MalformedEventError
from stream.budget.decision_records import digest_streams
from stream.budget.receipts import EMPTY_TRAIL_HEAD, BrokenTrailError, check_next_entry, entry_digest
from stream.privacy.composition.costs import RefusedError, charged_answers, extension_cost, grant_cost, to_amount
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.ledger_records import restore_ledger
from stream.privacy.ledger.state_machine import Ledger


@dataclass
class TrailOpening:
    """A stream according to the trail: definition digest, grant, extensions and end."""

    source: str
    digest: str
    granted: schemas.Amount
    extensions: dict[str, schemas.Amount] = field(default_factory=dict)
    end: schemas.TrailEvent | None = None


class TrailCheck:
    """Reads a trail entry by entry, and then compares a ledger with it."""

    def __init__(self, noted: Iterable[schemas.TrailHead] = ()) -> None:
        """Create a check; the trail must contain each head that was ``noted`` elsewhere."""
        self.head = EMPTY_TRAIL_HEAD
        self._noted_digests = {head.entries: head.digest for head in noted}
        self._findings: list[str] = []
        self._sources: dict[str, schemas.Totals] = {}
        self._populations: set[str] = set()
        self._sources_at_beginning: dict[str, schemas.TrailStanding] = {}
        self._openings: dict[str, TrailOpening] = {}
        self._ends: dict[str, schemas.TrailEvent] = {}
        self._lost_streams: set[str] = set()

    def add_entry(self, value: bytes | None) -> schemas.TrailRecord:
        """Check the next entry's bytes; BrokenTrailError if it does not follow."""
        self.head, entry = check_next_entry(self.head, value)
        if self._noted_digests.get(self.head.entries, self.head.digest) != self.head.digest:
            noted = f"the noted head of {self.head.entries} entries"
            self._findings.append(f"entry {entry.number}: its digest differs from {noted}")
        match entry:
            case schemas.TrailRequest():
                self._add_request(entry)
            case schemas.TrailEvent() | schemas.TrailPoint():
                if entry.source is not None and entry.totals is not None:
                    self._sources[entry.source] = entry.totals
                if isinstance(entry, schemas.TrailEvent) and entry.stream is not None:
                    self._ends[entry.stream] = entry
            case schemas.TrailStanding():
                self._sources_at_beginning[entry.source] = entry
                self._sources[entry.source] = entry.totals
            case schemas.TrailRestored():
                ended = {name for name, end in self._ends.items() if end.event == "closed"}
                self._lost_streams = self._openings.keys() - ended
            case _:
                pass
        return entry

    def _add_request(self, entry: schemas.TrailRequest) -> None:
        if entry.source is not None and entry.totals is not None:
            self._sources[entry.source] = entry.totals
        if entry.outcome == "registered" and entry.population is not None:
            self._populations.add(entry.population)
        if entry.outcome != "opened" or entry.stream is None or entry.source is None or entry.granted is None:
            return
        opening = self._openings.get(entry.stream)
        # If the receipt of an extension was deleted, a repeated request has a second entry, but no effect.
        if opening is None or entry.action == "open" or entry.digest not in opening.extensions:
            self._ends.pop(entry.stream, None)
        if entry.action == "open":
            if opening is not None:
                self._findings.append(
                    f"stream '{entry.stream}' was opened twice, the second time by entry {entry.number}"
                )
            self._openings[entry.stream] = TrailOpening(entry.source, entry.stream_digest or "", entry.granted)
        elif opening is not None:
            opening.extensions[entry.digest] = entry.granted

    def findings(self) -> list[str]:
        """Return the faults of the trail; a broken chain has raised an error."""
        return list(self._findings)

    def missing_heads(self) -> list[str]:
        """Return a finding for each noted head that lies after the trail's last entry."""
        return [
            f"the trail has {self.head.entries} entries, but a head of {entries} entries was noted"
            for entries in self._noted_digests
            if entries > self.head.entries
        ]

    def compare_ledger(self, records: Iterable[schemas.LedgerRecord]) -> list[str]:
        """Compare a ledger with the trail, and return the differences.

        The trail must end at the head in the ledger. ``records`` has the latest record of each key.
        """
        records = list(records)
        progress = next((one for one in records if isinstance(one, schemas.LedgerProgress)), None)
        sources = {one.source.source: one for one in records if isinstance(one, schemas.SourceRecord)}
        grants = {one.spec.stream: one for one in records if isinstance(one, schemas.GrantRecord)}
        head = progress.trail if progress is not None else None
        findings = []
        if head is None and self.head.entries == 0:
            findings.append(
                "the ledger has no trail yet, so nothing was compared; send the budget service a request first"
            )
        elif head is None or (head.entries, head.digest) != (self.head.entries, self.head.digest):
            entries = 0 if head is None else head.entries
            findings.append(
                f"the trail has {self.head.entries} entries, but the ledger was last written with {entries} entries"
            )
        orphans = [one for one in grants.values() if one.spec.source not in sources]
        findings += [
            f"stream '{one.spec.stream}': the ledger has no source '{one.spec.source}'" for one in orphans
        ]
        ledger = Ledger()
        try:
            restore_ledger(ledger, [one for one in records if one not in orphans])
        except RefusedError as refused:
            return [*findings, f"the ledger's records contradict each other: {refused.reason}"]
        openings = Counter(one.source for one in self._openings.values())
        for name, source in sources.items():
            findings += self._compare_source(name, source, ledger)
            findings += self._compare_streams(name, ledger.accounts[name], openings)
        for one in records:
            if isinstance(one, schemas.PopulationRecord):
                findings += self._compare_population(one, ledger)
        findings += [
            f"source '{name}': the trail has its registration, but the ledger does not have the source"
            for name in self._sources.keys() - sources.keys()
            if not ledger.retired_names.has("source", name)
        ]
        findings += [
            f"stream '{name}': the trail has its opening on '{one.source}', but the ledger does not have the stream"
            for name, one in self._openings.items()
            if name not in grants and not ledger.retired_names.has("stream", name)
        ]
        for name, record in grants.items():
            if record.spec.source in sources:
                findings += self._compare_grant(name, record, ledger)
        return findings

    def _compare_population(self, record: schemas.PopulationRecord, ledger: Ledger) -> list[str]:
        name = record.population.population
        summed = ledger.population_account(name).to_record()
        findings = _compare_amounts(f"population '{name}'", record, summed)
        if name not in self._populations:
            findings.append(f"population '{name}': the trail has no entry of its registration")
        return findings

    def _compare_source(self, name: str, record: schemas.SourceRecord, ledger: Ledger) -> list[str]:
        account = ledger.accounts[name]
        findings = _compare_amounts(f"source '{name}'", record, account.to_record())
        totals = self._sources.get(name)
        if totals is None:
            return [*findings, f"source '{name}': the trail has no entry of its registration"]
        compared = ("granted", "refunded") if record.unnoted else ("granted", "spent", "refunded")
        findings += [
            f"source '{name}': {amount} differs from the trail's last entry"
            for amount in compared
            if getattr(totals, amount) != getattr(record, amount)
        ]
        return findings

    def _compare_streams(self, name: str, account: Account, openings: Counter[str]) -> list[str]:
        """Compare the streams from before the trail's beginning, and the number of all streams of the source."""
        before = {stream: one for stream, one in account.grants.items() if stream not in self._openings}
        beginning = self._sources_at_beginning.get(name)
        digest = digest_streams((stream, one.identity.digest) for stream, one in before.items())
        noted = (beginning.streams, beginning.digest) if beginning else (0, digest_streams(()))
        # The digest covers all streams from before the beginning, so it cannot be compared if one is retired.
        is_comparable = not account.retired or len(before) == noted[0]
        if account.streams != noted[0] + openings[name] or (is_comparable and (len(before), digest) != noted):
            return [f"source '{name}': the streams from before the trail's beginning were changed"]
        return []

    def _compare_grant(self, name: str, record: schemas.GrantRecord, ledger: Ledger) -> list[str]:
        """Compare a stream's cost with its plan, and its opening, extensions and end with the trail."""
        account, grant = ledger.find_stream(record.spec.source, name)
        source = account.source
        findings = []
        if record.cost != to_amount(grant.claim.cost, source):
            findings.append(f"stream '{name}': its cost in the ledger is not the cost of its plan")
        if (opening := self._openings.get(name)) is None:
            return findings
        if (opening.source, opening.digest) != (record.spec.source, record.identity.digest):
            findings.append(f"stream '{name}': its source or definition in the trail differs from the ledger's")
        if opening.granted != to_amount(grant_cost(record.calibration, source.accountant, ()), source):
            findings.append(f"stream '{name}': the amount granted at its opening is not the cost of its plan")
        if opening.extensions != _extension_costs(grant, ledger, source.accountant):
            findings.append(f"stream '{name}': its extensions differ from those granted in the trail")
        end = self._ends.get(name)
        state_in_trail = end.event if end is not None else "halted" if name in self._lost_streams else "open"
        if record.state != state_in_trail:
            findings.append(
                f"stream '{name}': it is {record.state} in the ledger, but {state_in_trail} in the trail"
            )
        return findings


def _compare_amounts(owner: str, record: object, summed: object) -> list[str]:
    return [
        f"{owner}: {amount} is not the sum over its grants"
        for amount in ("granted", "spent", "refunded", "left")
        if getattr(record, amount) != getattr(summed, amount)
    ]


def _extension_costs(grant: Grant, ledger: Ledger, accountant: str) -> Mapping[str, schemas.Amount]:
    source = ledger.account(grant.spec.source).source
    costs = {}
    for number, extension in enumerate(grant.extensions):
        start = charged_answers(grant.calibration, grant.extensions[:number])
        costs[extension.request] = to_amount(
            extension_cost(grant.calibration, accountant, extension, start), source
        )
    return costs


class AnchoredTrail:
    """Follows a trail from an anchored head to the ledger's head; the digests chain all earlier entries."""

    def __init__(self, anchored: schemas.TrailHead, ledger_head: schemas.TrailHead | None) -> None:
        """``ledger_head`` is the trail's head in the ledger; None if the ledger has no trail."""
        self._anchored = anchored
        self._ledger_head = ledger_head or EMPTY_TRAIL_HEAD
        self._head = EMPTY_TRAIL_HEAD if anchored.entries == 0 else None
        self._finding: str | None = None
        if self._ledger_head.entries < anchored.entries:
            self._finding = (
                f"the ledger was last written with {self._ledger_head.entries} entries of the trail, but "
                f"{anchored.entries} were anchored"
            )

    @property
    def first_entry(self) -> int:
        """The number of the first entry that must be added."""
        return max(0, self._anchored.entries - 1)

    @property
    def is_decided(self) -> bool:
        """True if further entries cannot change the finding."""
        return self._finding is not None or (
            self._head is not None and self._head.entries >= self._ledger_head.entries
        )

    def add_entry(self, value: bytes | None) -> None:
        """Check the next entry's bytes; entries before ``first_entry`` are ignored."""
        if self.is_decided:
            return
        if self._head is not None:
            try:
                self._head, _ = check_next_entry(self._head, value)
            except BrokenTrailError as broken:
                self._finding = str(broken)
            return
        try:
            entry = schemas.trail_codec.decode(value)
        except MalformedEventError:
            return  # the anchored entry is missing, unless it comes later
        if entry.number != self.first_entry:
            return
        digest = entry_digest(value or b"")
        if digest != self._anchored.digest:
            self._finding = f"entry {entry.number} of the trail differs from the anchored one"
        self._head = schemas.TrailHead(entries=entry.number + 1, digest=digest, time=entry.time)

    def describe_difference(self) -> str | None:
        """Return how the trail differs from the anchor; None if it does not. Call this after the last entry."""
        if self._finding is not None:
            return self._finding
        if self._head is None:
            return f"the trail has no entry {self.first_entry}, which was anchored"
        if self._head.entries < self._ledger_head.entries:
            return f"the trail ends after {self._head.entries} entries, but the ledger has {self._ledger_head.entries}"
        if self._head.digest != self._ledger_head.digest:
            return f"entry {self._head.entries - 1} of the trail differs from the entry with which the ledger was written"
        return None
