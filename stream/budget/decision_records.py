"""Writes the records of decisions: the audit trail's entries and control events.

The trail contains requests, decisions, automatic events and spending. An entry and the change of the
ledger are written in one transaction. The ledger's progress record contains the trail's head, so after
a restart the trail continues after its last committed entry. Control events contain the definitions,
ends and retirements of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from blake3 import blake3

import schemas
from schemas.ledger import LostTimeStatement
from stream.budget.receipts import EMPTY_TRAIL_HEAD, entry_digest
from stream.privacy.composition.costs import ordinary_charges_left, shown_spending, spent_amount, to_amount
from stream.privacy.ledger.accounts import Account, PopulationAccount
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.ledger_records import exhausted_reason
from stream.privacy.ledger.retirement import DIGEST_BYTES, name_digest
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import REPEATED_HEADER, RETIRED_PREFIX, Message, Outputs
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of

POINT_INTERVAL_MS: Final = 60_000
"""Minimum time, by the ledger's clock, between two *points* of an account, which are entries with its totals."""
QUIET_SECONDS: Final = 60.0
"""Seconds without input after which all pending points are written."""


class TrailWriter:
    """Appends entries to the trail; keeps the accounts that have spent since the last entry with their totals."""

    def __init__(self, topics: Topics, ledger: Ledger) -> None:
        self.head: schemas.TrailHead | None = None
        self._topics = topics
        self._ledger = ledger
        self._unrecorded_accounts: dict[str, Account] = {}
        self._next_point_ms = 0
        self._quiet_since: float | None = None
        self._largest_grant: float | None = None

    def restore(self, head: schemas.TrailHead | None) -> None:
        """Continue after a trail's head, if there is one, and set the ledger's clock to its time."""
        self.head = head
        self._ledger.advance_clock(head.time if head is not None else 0)
        self._unrecorded_accounts = {
            name: account for name, account in self._ledger.accounts.items() if account.has_unrecorded_spending
        }
        self._next_point_ms = min(map(_point_due_ms, self._unrecorded_accounts.values()), default=0)

    def ensure_begun(self, outputs: Outputs) -> None:
        """Begin a trail with the current accounts if there is no trail yet."""
        if self.head is not None:
            return
        self.head = EMPTY_TRAIL_HEAD
        accounts = self._ledger.accounts.values()
        streams = sum(len(account.grants) for account in accounts)
        self._write_entry(outputs, schemas.TrailBeginning, sources=len(accounts), streams=streams)
        for account in accounts:
            self._write_entry(
                outputs,
                schemas.TrailStanding,
                source=account.source.source,
                streams=len(account.grants),
                digest=digest_streams((name, grant.digest) for name, grant in account.grants.items()),
                totals=_totals_of(account),
            )

    def write_decision(self, request: schemas.Request, receipt: schemas.Receipt, outputs: Outputs) -> None:
        """Write a request and its decision, with the resulting totals and the stream's digest."""
        self.write_renewals(outputs)
        concerns_population = isinstance(request, schemas.RegisterPopulation) or (
            isinstance(request, schemas.Allot) and request.source is None
        )
        source = None if concerns_population else receipt.source
        account = self._ledger.accounts.get(source or "")
        grant = None if account is None else account.grants.get(receipt.stream or "")
        fields: dict[str, Any] = _requested_amounts(request, self._ledger)
        if receipt.outcome == "opened" and grant is not None and account is not None:
            fields["granted"] = receipt.granted or to_amount(grant.claim.cost, account.source)
            self._note_grant(fields["granted"])
            fields["stream_digest"] = grant.digest
            fields["mechanism"] = grant.spec.mechanism.kind
        if account is not None and receipt.outcome in {"registered", "opened"}:
            fields["totals"] = self._record_totals(account)
        self._write_entry(
            outputs,
            schemas.TrailRequest,
            request=receipt.request,
            digest=receipt.digest,
            action=request.kind,
            outcome=receipt.outcome,
            source=source,
            stream=receipt.stream,
            population=receipt.population,
            analyst=getattr(request, "analyst", None),
            by=request.by,
            reason=receipt.reason,
            asked=receipt.asked,
            left=receipt.left,
            answers=receipt.answers,
            **fields,
        )

    def write_period(self, receipt: schemas.Receipt, account: Account, outputs: Outputs) -> None:
        """Write the registration and the openings of a standing stream's new period."""
        shared: dict[str, Any] = {"request": receipt.request, "digest": receipt.digest, "source": account.name}
        shared["totals"] = self._record_totals(account)
        amounts: dict[str, Any] = {"epsilon": account.source.epsilon, "delta": account.source.delta}
        self._write_entry(
            outputs, schemas.TrailRequest, **shared, **amounts, action="register", outcome="registered"
        )
        for name, grant in account.grants.items():
            granted = to_amount(grant.claim.cost, account.source)
            self._note_grant(granted)
            self._write_entry(
                outputs,
                schemas.TrailRequest,
                **shared,
                action="open",
                outcome="opened",
                stream=name,
                analyst=grant.analyst,
                epsilon=grant.spec.epsilon,
                delta=grant.spec.delta,
                mechanism=grant.spec.mechanism.kind,
                granted=granted,
                stream_digest=grant.digest,
            )

    def take_largest_grant(self) -> float | None:
        """Return the largest ε granted since the last call; None without a grant."""
        largest, self._largest_grant = self._largest_grant, None
        return largest

    def _note_grant(self, granted: schemas.Amount) -> None:
        self._largest_grant = max(granted.epsilon, self._largest_grant or 0.0)

    def write_end(self, account: Account, grant: Grant, outputs: Outputs) -> None:
        """Write that a stream is exhausted, halted or closed, as its worker's charge reports."""
        self._write_entry(
            outputs,
            schemas.TrailEvent,
            event=grant.state,
            source=account.source.source,
            stream=grant.stream,
            reason=grant.reason,
            spent=spent_amount(grant.claim.spent, grant.claim.cost, account.source),
            refunded=to_amount(grant.claim.refunded, account.source),
            totals=self._record_totals(account),
        )

    def write_renewals(self, outputs: Outputs) -> None:
        """Write an event for each renewed budget."""
        for owner in self._ledger.drain_renewed_owners():
            self._write_entry(
                outputs,
                schemas.TrailEvent,
                event="renewed",
                source=None if isinstance(owner, PopulationAccount) else owner.name,
                population=owner.name if isinstance(owner, PopulationAccount) else None,
                reason=f"period {owner.budget.period_number}",
            )

    def write_restored(
        self, since: LostTimeStatement, lost: int, backup: str, outputs: Outputs, reason: str | None = None
    ) -> None:
        """Write that the ledger was restored from a backup, then the totals of all accounts."""
        self._write_entry(outputs, schemas.TrailRestored, since=since, lost=lost, backup=backup, reason=reason)
        self._write_points(list(self._ledger.accounts.values()), outputs)

    def schedule_point(self, account: Account) -> None:
        """Schedule a point for an account, a minute after the last entry with the account's totals."""
        account.has_unrecorded_spending = True
        due_ms = _point_due_ms(account)
        self._next_point_ms = min(self._next_point_ms, due_ms) if self._unrecorded_accounts else due_ms
        self._unrecorded_accounts[account.source.source] = account

    def write_due_points(self, outputs: Outputs) -> None:
        """Write the points that are due by the ledger's clock."""
        self._quiet_since = None
        if self._unrecorded_accounts and self._ledger.clock >= self._next_point_ms:
            accounts = self._unrecorded_accounts.values()
            self._write_points([one for one in accounts if _point_due_ms(one) <= self._ledger.clock], outputs)
            self._next_point_ms = min(map(_point_due_ms, self._unrecorded_accounts.values()), default=0)

    def write_points_when_quiet(self, now: float, outputs: Outputs) -> None:
        """Write all pending points after a minute without input; ``now`` is in monotonic seconds."""
        if not self._unrecorded_accounts:
            return
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now - self._quiet_since >= QUIET_SECONDS:
            self._write_points(list(self._unrecorded_accounts.values()), outputs)

    def _write_points(self, accounts: Iterable[Account], outputs: Outputs) -> None:
        for account in accounts:
            totals = self._record_totals(account)
            self._write_entry(outputs, schemas.TrailPoint, source=account.source.source, totals=totals)

    def _record_totals(self, account: Account) -> schemas.Totals:
        account.totals_recorded_ms, account.has_unrecorded_spending = self._ledger.clock, False
        self._unrecorded_accounts.pop(account.source.source, None)
        self._ledger.changes.mark_changed(account, [])
        return _totals_of(account)

    def _write_entry(self, outputs: Outputs, kind: Callable[..., schemas.TrailRecord], **fields: Any) -> None:
        head = self.head or EMPTY_TRAIL_HEAD
        entry = kind(number=head.entries, previous=head.digest, time=self._ledger.clock, **fields)
        value = schemas.trail_codec.encode(entry)
        self.head = schemas.TrailHead(entries=entry.number + 1, digest=entry_digest(value), time=entry.time)
        source = (getattr(entry, "source", None) or "").encode()
        outputs.add(self._topics.trail, partition_of(source, LEDGER_PARTITIONS), (source, value, ()))


def _point_due_ms(account: Account) -> int:
    return 0 if account.totals_recorded_ms is None else account.totals_recorded_ms + POINT_INTERVAL_MS


def _totals_of(account: Account) -> schemas.Totals:
    return schemas.Totals(**account.budget.amounts())


def digest_streams(identities: Iterable[tuple[str, str]]) -> str:
    """Return one digest of many streams, each given by its name and the digest of its definition."""
    listed = "".join(f"{name} {digest}\n" for name, digest in sorted(identities))
    return blake3(listed.encode()).hexdigest()


def _requested_amounts(request: schemas.Request, ledger: Ledger) -> dict[str, Any]:
    match request:
        case schemas.RegisterSource():
            return {"epsilon": request.source.epsilon, "delta": request.source.delta}
        case schemas.OpenStream():
            spec = request.stream
            return {"epsilon": spec.epsilon, "delta": spec.delta, "mechanism": spec.mechanism.kind}
        case schemas.RegisterPopulation():
            return {"epsilon": request.population.epsilon, "delta": request.population.delta}
        case schemas.ExtendStream():
            return {"epsilon": request.epsilon, "delta": request.delta}
        case schemas.Allot():
            owner = (
                ledger.accounts.get(request.source)
                if request.source is not None
                else ledger.populations.get(request.population or "")
            )
            found = None if owner is None else owner.budget.allotments.get(request.allotment)
            analysts = request.analysts or (found.analysts if found is not None else (request.allotment,))
            given = {"allotment": request.allotment, "analysts": analysts}
            return {**given, "epsilon": request.epsilon, "delta": request.delta}
        case _:
            return {}


def build_control_event(account: Account, grant: Grant) -> schemas.Control:
    """Return the control event with a stream's definition; its kind says whether the stream may answer."""
    spec, identity = grant.decode_opening()
    opened = schemas.StreamOpened(
        spec=spec,
        source=account.source,
        identity=identity,
        fingerprint=account.fingerprint,
        calibration=grant.calibration,
        extensions=grant.extensions,
        version=account.version,
    )
    if grant.ending is None and grant.state == "open":
        return opened
    ending = grant.ending or "halted"
    ended = schemas.StreamClosed if ending == "closed" else schemas.StreamHalted
    return ended(**{**dict(opened), "kind": ending, "reason": grant.reason or ending})


def build_retired_answer(account: Account, grant: Grant) -> schemas.RetiredAnswer:
    """Return the fields of the answers that a worker gives for an ended stream."""
    totals = (grant.answered, grant.tops, grant.surplus)
    return schemas.RetiredAnswer(
        # A stream that is halted after its last charged answer stays exhausted.
        reason=exhausted_reason(grant.calibration, grant.cutoff)
        if grant.state == "exhausted"
        else grant.reason or grant.state,
        spent=shown_spending(grant.calibration, account.source, *totals, grant.extensions),
        tops_left=ordinary_charges_left(grant.cutoff, grant.tops, grant.surplus) if grant.cutoff else None,
    )


def build_retired_record(retired: Sequence[tuple[str, schemas.RetiredAnswer]]) -> schemas.RetiredStreams:
    """Return the record that replaces the definitions of these streams."""
    answers = tuple(dict.fromkeys(answer for _, answer in retired))
    return schemas.RetiredStreams(
        names=b"".join(name_digest("stream", name) for name, _ in retired).hex(),
        answers=answers,
        answer_of=tuple(answers.index(answer) for _, answer in retired),
    )


_MAX_RETIRED_PER_RECORD: Final = 128


class ControlPublisher:
    """Publishes control events to the workers and feeds."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def publish_control(self, account: Account, grant: Grant, outputs: Outputs, *, repeats: bool = False) -> None:
        """Publish a stream's control event to the worker of its partition.

        ``repeats`` says that the stream was opened earlier, although its event may say no more than its opening.
        """
        control = build_control_event(account, grant)
        key = grant.stream.encode()
        headers = [(REPEATED_HEADER, b"")] if repeats else ()
        message: Message = (key, schemas.control_codec.encode(control), headers)
        outputs.add(self._topics.control, partition_of(key, self._topics.partitions), message)

    def publish_retired(self, retired: Mapping[str, schemas.RetiredAnswer], outputs: Outputs) -> None:
        """Publish the digests of retired streams, and then delete their definitions."""
        by_partition: dict[int, list[str]] = {}
        for name in retired:
            partition = partition_of(name.encode(), self._topics.partitions)
            by_partition.setdefault(partition, []).append(name)
        for partition, members in by_partition.items():
            for start in range(0, len(members), _MAX_RETIRED_PER_RECORD):
                names = members[start : start + _MAX_RETIRED_PER_RECORD]
                record = build_retired_record([(name, retired[name]) for name in names])
                key = RETIRED_PREFIX + record.names[: 2 * DIGEST_BYTES].encode()
                outputs.add(
                    self._topics.control, partition, (key, schemas.retired_streams_codec.encode(record), ())
                )
                outputs.extend(self._topics.control, partition, [(name.encode(), None, ()) for name in names])
