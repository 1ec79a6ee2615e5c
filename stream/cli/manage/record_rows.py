"""Rows of the commands' tables for grants, budgets and trail entries; exports of the trail to files."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final, Generic, NamedTuple, TypeVar

import typer

from schemas import (
    Amount,
    EventsSource,
    GrantRecord,
    Source,
    StreamStatus,
    TrailRecord,
    registered_name,
)
from stream.budget.receipts import entry_digest
from stream.cli.output import CommandError, format_amount, format_left, print_warnings
from stream.client.blocking_client import Client
from stream.errors import Forbidden
from stream.formatting import format_count, format_loss
from stream.kafka.broker_addresses import local_settings
from stream.kafka.topic_creation import inspect_live_topic
from stream.optional_packages import import_or_missing
from stream.privacy.composition.costs import charged_answers, displayed_state, ordinary_charges_left
from stream.processing.dead_letters import says_exhausted
from stream.processing.protocol import MODEL_NOT_ASKED_REASON
from stream.questions.result_text import quote_formula

_ENDINGS = {"closed": "closing", "halted": "halting"}


@dataclass(frozen=True, slots=True)
class ShownGrant:
    """A grant with its worker's last status; ``written`` is the status's time in seconds since 1970."""

    grant: GrantRecord
    status: StreamStatus | None = None
    written: float | None = None

    @property
    def _newer_status(self) -> StreamStatus | None:
        """Return the worker's status if it is at least as recent as the ledger's record."""
        status, grant = self.status, self.grant
        if status is None or status.incarnation != grant.identity.incarnation or grant.settled:
            return None
        return status if (status.answered, status.tops) >= (grant.answered, grant.tops) else None

    @property
    def totals(self) -> GrantRecord | StreamStatus:
        """Return the more recent of status and grant, for its answers, charges and spent amount."""
        return self._newer_status or self.grant

    @property
    def state(self) -> str:
        """Return the state, a requested ending, or "not answering"."""
        grant, newer = self.grant, self._newer_status
        if grant.state != "open":
            return grant.state
        if grant.ending is not None:
            return _ENDINGS[grant.ending]
        if newer is None:
            return "open"
        if self._refusal is not None:
            return "not answering"
        # A worker may report "exhausted" before it has read an extension.
        left = self._cutoff - self.used if self._cutoff else None
        state = "open" if newer.state == "exhausted" else newer.state
        return displayed_state(state, left, getattr(grant.spec.mechanism, "beyond", "end"))

    @property
    def reason(self) -> str | None:
        """Return the reason of the state, without the state as its prefix."""
        reason, ending = self._refusal or self.grant.reason, self.grant.ending
        if reason and self.state == "exhausted" and ending is not None and not says_exhausted(reason):
            return f"{ending}: {reason}"
        return reason and reason.removeprefix(f"{self.state}: ")

    @property
    def _refusal(self) -> str | None:
        """Return why the worker does not answer; None if it does."""
        refused = None if self._newer_status is None else self._newer_status.refused
        return None if refused == MODEL_NOT_ASKED_REASON else refused

    @property
    def as_of(self) -> str:
        """Describe the time of the totals: a loss, the end, the worker's status, the last charge or the opening."""
        if self.grant.settled:
            return "before the loss" if self.grant.lost else "its end"
        if self._newer_status is None or self.written is None:
            return "the last charge" if self.grant.answered else "the opening"
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.written))

    @property
    def charged(self) -> str:
        """Format "used / granted" charged answers; "once" if one charge pays for all answers."""
        return f"{self.used} / {self._cutoff}" if self._cutoff else "once"

    @property
    def used(self) -> int:
        """Return the number of ordinary charges, rounded up, that cost as much as the charged answers."""
        return self._cutoff - ordinary_charges_left(self._cutoff, self.totals.tops, self.totals.surplus)

    @property
    def _cutoff(self) -> int:
        return charged_answers(self.grant.calibration, self.grant.extensions)


def join_grants(client: Client, grants: Sequence[GrantRecord]) -> list[ShownGrant]:
    """Join grants with their workers' last status; with none if the topic ``status`` may not be read."""
    try:
        statuses = client.statuses(grant.spec.stream for grant in grants if not grant.settled)
    except Forbidden:
        statuses = {}
    return [ShownGrant(grant, *statuses.get(grant.spec.stream, (None, None))) for grant in grants]


def warn_about_late_spending(client: Client, grants: Sequence[ShownGrant]) -> Iterator[str]:
    """Warn if the ledger lacks spending that streams have reported; a source's ``spent`` is the sum of its grants."""
    reported = {
        one.grant.spec.stream: one.totals.spent for one in grants if _exceeds(one.totals.spent, one.grant.spent)
    }
    if reported:  # the ledger is read again, because it was read before the reports
        source = next(one.grant.spec.source for one in grants)
        now = {one.spec.stream: one.spent for one in client.list_streams(source)}
        if any(_exceeds(spent, now.get(stream, spent)) for stream, spent in reported.items()):
            yield "the source's 'spent' is less than its streams have spent: a budget service corrects that within seconds; check that one runs"


def _exceeds(spent: Amount, recorded: Amount) -> bool:
    return spent.epsilon > recorded.epsilon or (spent.rho or 0.0) > (recorded.rho or 0.0)


def warn_about_topic(source: Source) -> None:
    """Warn if feeds refuse the topic of a live source."""
    if isinstance(source, EventsSource) and source.period_of is None:
        print_warnings(filter(None, [asyncio.run(inspect_live_topic(local_settings(), source)).problem]))


_Item = TypeVar("_Item")

AllPeriods = Annotated[
    bool, typer.Option("--all", help="List each period of a live topic separately; --json always does.")
]


class Line(NamedTuple, Generic[_Item]):
    """A line of a list. For the N periods of a name, ``item`` is the latest one and ``period`` is "START, of N"."""

    name: str
    item: _Item
    period: str = ""


def group_by_name(
    items: Iterable[_Item], name_of: Callable[[_Item], str], *, every: bool = False
) -> list[Line[_Item]]:
    """Return one line for each name, in order; with ``every``, one line for each period."""
    lines: dict[str, list[_Item]] = {}
    for item in items:
        lines.setdefault(name_of(item) if every else registered_name(name_of(item)), []).append(item)
    return [_merge_periods(name, found, name_of) for name, found in lines.items()]


def _merge_periods(name: str, items_of_name: list[_Item], name_of: Callable[[_Item], str]) -> Line[_Item]:
    periods = [(name_of(item).removeprefix(f"{name}@"), item) for item in items_of_name if name_of(item) != name]
    if not periods:
        return Line(name, items_of_name[0])
    start, latest = max(periods, key=lambda one: one[0])
    return Line(name, latest, f"{short_start(start)}, of {len(periods):,}")


def short_start(start: str) -> str:
    """Return a period's start without "Z" and without a time of 00:00."""
    return start.removesuffix("Z").removesuffix(":00").removesuffix("T00:00")


_AMOUNTS: Final = ("asked", "left", "granted", "spent", "refunded")
_TOTALS: Final = ("granted", "spent", "refunded", "left")
_TEXTS: Final = (
    *("kind", "action", "outcome", "event", "source", "population", "stream", "analyst"),
    *("allotment", "analysts", "by", "mechanism", "reason", "request", "since"),
)
_NUMBERS: Final = ("epsilon", "delta")
_COUNTS: Final = ("answers", "sources", "streams", "lost")
"""Fields of trail entries by the type of their columns; an amount has a column for each of its parts."""

ROWS_PER_BATCH: Final = 10_000

Row = dict[str, Any]
_Batch = Sequence[tuple[TrailRecord, bytes]]


def trail_row(entry: TrailRecord, value: bytes) -> Row:
    """Return an entry's row: one column for each number, and a last column with the entry's JSON."""
    row: Row = {"number": entry.number, "time": datetime.fromtimestamp(entry.time / 1000, UTC).isoformat()}
    row |= {name: getattr(entry, name, None) for name in (*_TEXTS, *_NUMBERS, *_COUNTS)}
    row["analysts"] = " ".join(row["analysts"] or ()) or None
    totals = getattr(entry, "totals", None)
    amounts = {name: getattr(entry, name, None) for name in _AMOUNTS}
    amounts |= {f"total_{name}": getattr(totals, name, None) for name in _TOTALS}
    for name, amount in amounts.items():
        row |= {f"{name}_{part}": getattr(amount, part, None) for part in Amount.model_fields}
    return row | {"digest": entry_digest(value), "record": value.decode()}


def write_trail(path: Path, batches: Iterable[_Batch]) -> int:
    """Write entries to a new owner-only file ``.jsonl`` (bytes unchanged), ``.csv`` or ``.parquet``; return their number."""
    writer = {".jsonl": _write_lines, ".csv": _write_csv, ".parquet": _write_parquet}.get(path.suffix)
    if writer is None:
        raise CommandError(f"cannot export to {path.name}; give a name that ends with .jsonl, .csv or .parquet")
    count = 0

    def counted_batches() -> Iterator[_Batch]:
        nonlocal count
        for batch in batches:
            count += len(batch)
            yield batch

    with create_owner_only_file(path) as file:
        writer(file, counted_batches())
    return count


@contextmanager
def create_owner_only_file(path: Path) -> Iterator[IO[bytes]]:
    """Create an owner-only file; remove it if writing fails."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandError(f"{path} exists already; give another name") from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.strerror:  # none of a SottoError such as Unreachable
            raise CommandError(f"cannot write {path}: {error.strerror}") from None
        raise


def _write_lines(file: IO[bytes], batches: Iterable[_Batch]) -> None:
    for batch in batches:
        file.writelines(value + b"\n" for _, value in batch)


def _write_csv(file: IO[bytes], batches: Iterable[_Batch]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, list(_column_types()), lineterminator="\n")
    writer.writeheader()
    for batch in batches:
        writer.writerows({name: quote_formula(value) for name, value in trail_row(*one).items()} for one in batch)
    text.detach()


def _column_types() -> dict[str, str]:
    amounts = (*_AMOUNTS, *(f"total_{name}" for name in _TOTALS))
    return {
        "number": "int64",
        "time": "string",
        **dict.fromkeys(_TEXTS, "string"),
        **dict.fromkeys(_NUMBERS, "float64"),
        **dict.fromkeys(_COUNTS, "int64"),
        **{f"{name}_{part}": "float64" for name in amounts for part in Amount.model_fields},
        "digest": "string",
        "record": "string",
    }


def _write_parquet(file: IO[bytes], batches: Iterable[_Batch]) -> None:
    arrow, parquet = import_or_missing("pyarrow", "arrow"), import_or_missing("pyarrow.parquet", "arrow")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _column_types().items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            for start in range(0, len(batch), ROWS_PER_BATCH):
                rows = [trail_row(*one) for one in batch[start : start + ROWS_PER_BATCH]]
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the entries of an exported JSON lines file, byte for byte."""
    try:
        with path.open("rb") as file:
            yield from (line.rstrip(b"\n") for line in file)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def summary_row(entry: TrailRecord) -> list[str]:
    """Return an entry's number, time, author, action, subject, outcome and remaining budget."""
    time_text = datetime.fromtimestamp(entry.time / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    subject = next((one for name in ("stream", "source", "population") if (one := getattr(entry, name, None))), "")
    totals = getattr(entry, "totals", None)
    author = getattr(entry, "by", None) or getattr(entry, "analyst", None) or ""
    action: str = entry.kind
    left = format_left(totals.left) if totals else ""
    decision = f"spent {format_amount(totals.spent)}" if totals else ""
    match entry.kind:
        case "request":
            granted = f" {format_amount(entry.granted)}" if entry.granted is not None else ""
            reason = f": {entry.reason}" if entry.reason else ""
            if entry.allotment is not None:
                amount = format_amount(Amount(epsilon=entry.epsilon or 0.0, delta=entry.delta or 0.0))
                rest = " and the budget's δ" if entry.delta is None else ""
                subject = f"{entry.allotment}: {amount}{rest} of {subject}"
            action, decision = entry.action, f"{entry.outcome}{granted}{reason}"
        case "event":
            action, decision = entry.event, "" if entry.spent is None else f"spent {format_amount(entry.spent)}"
            if entry.event == "closed" and entry.refunded is not None:
                decision += f", {format_amount(entry.refunded)} back"
        case "beginning":
            streams = format_count(entry.streams, "stream")
            decision = f"there were {format_count(entry.sources, 'source')}, {streams}"
        case "restored":
            decision = format_loss(entry.since, entry.lost, is_rollback=bool(entry.reason))
    return [str(entry.number), time_text, author, action, subject, decision, left]
