"""Periods of person-period sources, each with a separate account.

Questions never go to a ``person-period`` source itself. Its streams are models: they are planned
there, and their costs together must fit its budget. In each period, equal streams are opened on
that period's account, which has the same budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blake3 import blake3

from schemas import (
    BeginPeriod,
    EventsSource,
    Source,
    StreamIdentity,
    StreamSpec,
    moment_ms,
    named_at,
    named_from,
    span_ms,
    written_moment,
)
from stream.budget.openings import ControlPublisher, definition_digest
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import Grant, meaning_in_periods
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import Outputs, RecordLike


class AccountPeriods:
    """The periods of all sources, as accounts of the ledger."""

    def __init__(
        self, ledger: Ledger, workers: ControlPublisher, *, key_id: str, mint: Callable[[RecordLike], bytes]
    ) -> None:
        self._ledger = ledger
        self._workers = workers
        self._key_id = key_id
        self._mint = mint
        self._begun: list[Account] = []

    def drain_begun(self) -> list[Account]:
        """Return the accounts of periods that began since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def accounts_of(self, source: str) -> Sequence[Account]:
        """Return the accounts of a source's periods in the order they were begun."""
        return self._ledger.periods.get(source, ())

    def require_free(self, name: str) -> None:
        """Refuse a source or stream with periods if the name of a period is already in use."""
        for known in (*self._ledger.accounts, *self._ledger.owner_of):
            if (named := named_from(known)) is not None and named[0] == name:
                raise RefusedError(f"'{known}' is in the way of the periods of '{name}'; choose another name")

    def earliest(self, source: Source) -> int:
        """Return the end of the last begun period; new streams are asked about later periods."""
        if not isinstance(source, EventsSource) or not source.has_periods:
            return 0
        ends = (_start_of(account) + source.period_ms for account in self.accounts_of(source.source))
        return max(ends, default=0)

    def require_ahead(self, spec: StreamSpec, source: Source) -> None:
        """Refuse a stream that starts in a period that has begun."""
        earliest = self.earliest(source)
        if spec.standing is not None and spec.standing.begins is not None and _begins(spec) < earliest:
            raise RefusedError(
                f"standing.begins: periods up to {written_moment(earliest)} have begun, with the streams that were open by then; give "
                "that moment or a later one"
            )

    def begin_period(self, record: RecordLike, request: BeginPeriod, outputs: Outputs) -> None:
        """Begin a period's account with a copy of each open stream of its source.

        It does nothing if the period has begun. All checks come first, so that an account begins
        with all of its streams or not at all.
        """
        parent = self._ledger.account(request.source)
        source, start = parent.source, moment_ms(request.start)
        if not isinstance(source, EventsSource) or not source.has_periods:
            raise RefusedError(
                f"source '{request.source}' has no periods; ask for one whose unit is 'person-period'"
            )
        if named_at(source.source, start) in self._ledger.accounts:
            return
        if parent.state == "halted":
            raise RefusedError(f"source '{request.source}' is halted: {parent.reason}")
        if start % source.period_ms:
            raise RefusedError(
                f"start: periods of {source.period} begin at whole ones since 1970; give such a moment"
            )
        if source.clock == "broker" and start > self._ledger.clock + span_ms(source.ahead) + span_ms(source.idle):
            raise RefusedError("start: the period lies ahead; ask when it has begun")
        grants = [
            grant
            for grant in parent.grants.values()
            if grant.state == "open" and grant.ending is None and _begins(grant.spec) < start + source.period_ms
        ]
        if not grants:
            raise RefusedError(f"source '{request.source}' has no open stream that asks of this period; open one")
        account = self._ledger.register(source.of_period(start), None)
        minted = self._mint(record)
        for grant in grants:
            self._open(account, grant, start, minted, outputs)
        self._begun.append(account)

    def end_stream(
        self, account: Account, stream: str, ending: Callable[[str, str], bool], outputs: Outputs
    ) -> None:
        """End a model's stream in all periods; ``ending`` returns True if it has ended one."""
        if not isinstance(account.source, EventsSource) or not account.source.has_periods:
            return
        for one in self.accounts_of(account.name):
            name = named_at(stream, _start_of(one))
            if name in one.grants and ending(one.name, name):
                self._workers.publish_control(one, one.grants[name], outputs)

    def _open(self, account: Account, model: Grant, start: int, minted: bytes, outputs: Outputs) -> None:
        if model.spec.standing is None:
            raise TypeError("a stream on a live topic is a standing one")
        begins = written_moment(max(start, _begins(model.spec)))
        name = named_at(model.spec.stream, start)
        spec = model.spec.model_copy(
            update={
                "stream": name,
                "source": account.name,
                "standing": model.spec.standing.model_copy(update={"begins": begins}),
            }
        )
        identity = StreamIdentity(
            incarnation=blake3(name.encode(), key=blake3(minted).digest()).digest(16).hex(),
            digest=definition_digest(spec, account, model.calibration),
            key_id=self._key_id,
        )
        grant = self._ledger.reserve(spec, model.calibration, identity, model.analyst)
        self._workers.publish_control(account, grant, outputs)


def require_whole_life(source: Source, what: str) -> None:
    """Refuse an operation that sources with periods, and their accounts, do not support."""
    if isinstance(source, EventsSource) and source.period is not None:
        raise RefusedError(f"source '{source.source}' goes by periods: {what}")


def period_meaning(source: Source) -> str | None:
    """Return a text about the budget of a source with periods; None for other sources."""
    if not isinstance(source, EventsSource) or not source.has_periods:
        return None
    return meaning_in_periods(source.epsilon, source.delta, source.period or "")


def _start_of(account: Account) -> int:
    return moment_ms(getattr(account.source, "starts", None) or "1970-01-01T00:00:00Z")


def _begins(spec: StreamSpec) -> int:
    begins = None if spec.standing is None else spec.standing.begins
    return 0 if begins is None else moment_ms(begins)
