"""Digests of the names of retired streams, and the sums of their amounts.

A retired stream has neither a grant object nor a ledger record. Its name is never used again, and its amounts
count for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Final, Literal, Protocol, get_args

from blake3 import blake3

from schemas import EdgeTotals, ExactCost, RetiredClaim, RetiredNames, RetiredTotals
from stream.privacy.composition.costs import NO_COST, Cost
from stream.privacy.ledger.grants import Claim, Grant

DIGEST_BYTES: Final = 16

NameKind = Literal["stream", "source", "periods"]
"""The kind of a retired name: of a stream, of a period's account, or of a model with retired period streams."""


def name_digest(kind: NameKind, name: str) -> bytes:
    """Return the digest by which a retired name is recognized.

    It is improbable that two names have the same digest; the ledger would then only refuse a new name.
    """
    return blake3(f"{kind}|{name}".encode()).digest(DIGEST_BYTES)


def split_digests(digits: str) -> list[bytes]:
    """Split the digests of a block, given as joined hexadecimal digits."""
    digests = bytes.fromhex(digits)
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


Accountant = Literal["pure", "zcdp"]
_ACCOUNTANTS: Final[tuple[Accountant, ...]] = get_args(Accountant)
_NO_ANSWERS_LEFT: Final = EdgeTotals(answered=0, tops=0, settled=True)

NAMES_KEY_PREFIX: Final = b"retired_names|"
MAX_NAMES_PER_BLOCK: Final = 4096
"""Maximum number of names in a ledger record; new names are added to the last record up to this number."""


class Digests(Protocol):
    """A set of digests, in memory or in files."""

    def __len__(self) -> int: ...
    def add(self, digest: bytes) -> None: ...  # noqa: D102
    def find(self, digest: bytes) -> bytes | None:
        """Return the bytes that a table stores with a digest, or None if the digest is not in the set."""


class DigestsInMemory(set[bytes]):
    """A set of digests in memory, for commands that check a ledger."""

    def find(self, digest: bytes) -> bytes | None:
        """Return empty bytes if the digest was added, else None."""
        return b"" if digest in self else None


class NameDigests:
    """A set of names, stored as digests of 16 bytes each.

    The ledger stores them in blocks, each in one record. The last block is also kept in memory, because it
    is written again when it changes.
    """

    def __init__(self, digests: Digests | None = None) -> None:
        self._digests = DigestsInMemory() if digests is None else digests
        self._last_block: set[bytes] = set()
        self._full_block_count = 0
        self._changed: dict[int, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, kind: NameKind, name: str) -> bool:
        """Return True if the name was added."""
        return self._digests.find(name_digest(kind, name)) is not None

    def add(self, kind: NameKind, name: str) -> None:
        """Add a name that is not in the set."""
        digest = name_digest(kind, name)
        self._digests.add(digest)
        self._last_block.add(digest)
        self._changed[self._full_block_count] = self._last_block
        self._end_full_block()

    def drain_records(self) -> Iterator[RetiredNames]:
        """Yield the records of the blocks that have changed since the last call."""
        changed, self._changed = self._changed, {}
        for number, block in changed.items():
            yield RetiredNames(number=number, names=b"".join(sorted(block)).hex())

    def restore(self, record: RetiredNames) -> None:
        """Load the record of a block; a later record of a block contains all names of the earlier ones."""
        digests = set(split_digests(record.names))
        is_last = record.number >= self._full_block_count
        for digest in digests - self._last_block if is_last else digests:
            self._digests.add(digest)
        if is_last:
            self._full_block_count, self._last_block = record.number, digests
            self._end_full_block()

    def _end_full_block(self) -> None:
        if len(self._last_block) >= MAX_NAMES_PER_BLOCK:
            self._last_block, self._full_block_count = set(), self._full_block_count + 1


MAX_RETIRED_PER_STEP: Final = 500
"""Maximum number of streams that are retired in one step."""


class EndedStreams:
    """The streams that have ended and are not retired yet, in the order of their ends."""

    def __init__(self) -> None:
        self._source_and_end: dict[str, tuple[str, int]] = {}

    def update(self, source: str, grant: Grant, clock: int) -> None:
        """Note that a source's grant has ended at ``clock``, or that it has not ended.

        A stream that was extended and has ended again becomes the last one.
        """
        self._source_and_end.pop(grant.stream, None)
        if grant.is_over:
            self._source_and_end[grant.stream] = source, clock

    def list_ended_by(self, ended_by: int) -> list[tuple[str, str]]:
        """Return source and name of the first streams that ended at ``ended_by`` (ms) or before."""
        found = takewhile(lambda one: one[1][1] <= ended_by, self._source_and_end.items())
        return [(source, stream) for stream, (source, _) in islice(found, MAX_RETIRED_PER_STEP)]

    def remove(self, stream: str) -> None:
        """Remove a stream that is retired."""
        del self._source_and_end[stream]


@dataclass(slots=True)
class RetiredGrants:
    """The sums of the retired grants of one analyst on one account.

    Like a grant, it has claims: ``claim`` on the account's budget, and ``population_claim`` on the budget of
    the source's population. A source without a population may join one later. So ``joining`` has the claims on a
    future population's budget, one for each accountant that it may have.
    """

    analyst: str | None
    claim: Claim
    population_claim: Claim | None
    joining: dict[Accountant, Claim] = field(default_factory=dict)
    streams: int = 0

    @classmethod
    def create(cls, analyst: str | None, claim: Claim, population_claim: Claim | None) -> RetiredGrants:
        """Create empty sums from new claims of an account."""
        if population_claim is not None:
            return cls(analyst, _without_answers(claim), _without_answers(population_claim))
        joining = {accountant: Claim(accountant) for accountant in _ACCOUNTANTS}
        return cls(analyst, _without_answers(claim), None, joining)

    @property
    def totals(self) -> EdgeTotals:
        """The totals for ``Claim.start_totals`` at the start of a period; retired streams have no answers left."""
        return _NO_ANSWERS_LEFT

    def counted_amount(self, claim: Claim) -> Cost:
        """Return no cost: streams that retired before a period began do not count in it."""
        del claim
        return NO_COST

    def add(self, grant: Grant) -> None:
        """Add the amounts of a grant that never changes again."""
        self.streams += 1
        _add_amounts(self.claim, grant.claim)
        if self.population_claim is not None and grant.population_claim is not None:
            _add_amounts(self.population_claim, grant.population_claim)
        for accountant, claim in self.joining.items():
            priced = Claim(accountant)
            grant.price_claim(priced)
            _add_amounts(claim, priced)

    def claim_on_population(self, claim: Claim) -> Claim:
        """Return the sums as a claim on the budget of the population that the source joins.

        ``claim`` is a new claim on that budget; its accountant and period are used.
        """
        joined = self.joining["zcdp" if claim.accountant == "zcdp" else "pure"]
        return replace(joined, period=claim.period, start_totals=_NO_ANSWERS_LEFT)

    def to_record(self, source: str) -> RetiredTotals:
        """Build the ledger record."""
        return RetiredTotals(
            source=source,
            analyst=self.analyst,
            streams=self.streams,
            own=_claim_record(self.claim),
            shared=None if self.population_claim is None else _claim_record(self.population_claim),
            joining=tuple(map(_claim_record, self.joining.values())),
        )

    def restore(self, record: RetiredTotals) -> None:
        """Load the amounts of a ledger record."""
        self.streams = record.streams
        _restore_claim(self.claim, record.own)
        if self.population_claim is not None and record.shared is not None:
            _restore_claim(self.population_claim, record.shared)
        for one in record.joining:
            if one.accountant in self.joining:
                _restore_claim(self.joining[one.accountant], one)


def _without_answers(claim: Claim) -> Claim:
    return replace(claim, start_totals=_NO_ANSWERS_LEFT)


def _add_amounts(claim: Claim, more: Claim) -> None:
    claim.cost += more.cost
    claim.spent += more.spent
    claim.refunded += more.refunded
    claim.counted += more.counted


def _claim_record(claim: Claim) -> RetiredClaim:
    cost, spent, refunded, counted = map(_to_exact_cost, claim.amounts)
    return RetiredClaim(
        accountant="zcdp" if claim.accountant == "zcdp" else "pure",
        cost=cost,
        spent=spent,
        refunded=refunded,
        counted=counted,
        period=claim.period,
    )


def _restore_claim(claim: Claim, record: RetiredClaim) -> None:
    """Load a claim's amounts; an amount that counted in an earlier period does not count in the current one."""
    claim.cost, claim.spent, claim.refunded = map(_from_exact_cost, (record.cost, record.spent, record.refunded))
    claim.counted = _from_exact_cost(record.counted) if record.period == claim.period else NO_COST


def _to_exact_cost(cost: Cost) -> ExactCost:
    return ExactCost(loss=str(cost.loss), delta=str(cost.delta), rho=str(cost.rho), unbounded=cost.unbounded)


def _from_exact_cost(record: ExactCost) -> Cost:
    return Cost(int(record.loss), int(record.delta), int(record.rho), record.unbounded)
