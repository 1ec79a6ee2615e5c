"""``sotto ledger``: shows the trail, verifies it by anchors too, and backs up and restores the ledger."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast

import typer

from schemas import LedgerProgress, TrailHead, TrailRecord, trail_codec
from schemas.ledger import LostTimeStatement
from schemas.wire import MalformedEventError
from stream.budget.receipts import EMPTY_TRAIL_HEAD, BrokenTrailError
from stream.cli.manage.record_rows import create_owner_only_file, read_lines, summary_row, write_trail
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.client.blocking_client import Client, next_item
from stream.client.kafka_connection import KafkaConnection, translate_errors
from stream.client.ledger_reader import read_latest_first, read_ledger_records, read_topic
from stream.formatting import format_count
from stream.kafka.broker_addresses import local_settings
from stream.optional_packages import explain_missing_packages
from stream.settings import Settings
from stream.witnesses.anchor import Anchor, WitnessError, newest_generation, read_undamaged
from stream.witnesses.witness_kinds import open_witnesses, read_stamps


class WitnessChecks:
    """The anchors of each witness, and the digests of the trail at their positions."""

    def __init__(
        self, anchors: Mapping[str, Sequence[Anchor]], unread: Sequence[str] = (), *, is_copy: bool = False
    ) -> None:
        """``anchors`` has the newest generation of each witness; ``unread`` describes the witnesses not read.

        With ``is_copy``, the trail is a copy and may be older than an anchor.
        """
        self._anchors, self._unread, self._is_copy = anchors, unread, is_copy
        self._times: dict[str, dict[int, str | None]] = {}
        """For each file and number of entries, the time of the stamp; None if the stamp is invalid."""
        self._digests = dict[int, str | None].fromkeys(one.head.entries for one in chain(*anchors.values()))
        """The trail's digest after each number of entries that an anchor names; None until it is read."""
        self._entries = 0

    @classmethod
    def open(cls, settings: Settings, *, is_copy: bool) -> Self:
        """Read the witnesses and the time stamps of the settings."""
        anchors: dict[str, Sequence[Anchor]] = {}
        unread, times = [], {}
        for witness in open_witnesses(settings.witnesses):
            try:
                found, damage = read_undamaged(witness, settings.prefix)
                anchors[witness.name] = newest_generation(found)
                unread += [damage] * bool(damage)
            except WitnessError as error:
                unread.append(f"witness not checked: {error}")
        if path := settings.timestamp_file:
            try:
                stamps = read_stamps(Path(path), Path(settings.timestamp_roots), settings.prefix)
                anchors[name := f"time stamps in {path}"] = [one for one, _ in stamps]
                times[name] = {one.head.entries: time for one, time in stamps}
            except WitnessError as error:
                unread.append(f"time stamps not checked: {error}")
        checks = cls(anchors, unread, is_copy=is_copy)
        checks._times = times
        return checks

    def note_head(self, head: TrailHead) -> None:
        """Note the trail's head after an entry."""
        self._entries = head.entries
        if head.entries in self._digests:
            self._digests[head.entries] = head.digest

    def findings(self) -> list[str]:
        """Return a sentence for each witness whose anchors the trail lacks, or that is empty or not read."""
        return [
            *(
                f"{name}: has no anchor of this installation (SOTTO_PREFIX) beside a trail of {format_count(self._entries, 'entry', 'entries')}, so nothing was compared with "
                "it; if it is new, start the budget service with it, which writes the first anchor; otherwise its anchors were deleted"
                for name, found in self._anchors.items()
                if self._entries and not found
            ),
            *(
                f"{name}: the trail lacks the head {first.head.entries}:{first.head.digest} that was anchored at {first.time}; {format_count(self._entries, 'entry', 'entries')} of it were checked"
                + f"; it differs after entry {first.head.entries}" * (first.head.entries <= self._entries)
                + f"; nor does it match {format_count(len(later), 'later anchor')}" * bool(later)
                for name in self._anchors
                for first, *later in filter(None, [self._lacking(name)])
            ),
            *(
                f"{name}: the stamp of {entries} entries is invalid, or not of an authority of SOTTO_TIMESTAMP_ROOTS"
                for name, times in self._times.items()
                for entries, time in times.items()
                if time is None
            ),
            *self._unread,
        ]

    def matches(self) -> list[str]:
        """Return a sentence for each witness whose anchors the trail contains."""
        return [
            self._describe(name)
            for name, found in self._anchors.items()
            if (found or not self._entries) and not self._lacking(name)
        ]

    def _describe(self, name: str) -> str:
        found, compared = self._anchors[name], self._comparable(name)
        if not found:
            return f"{name}: has no anchor of this installation (SOTTO_PREFIX), and the trail is empty"
        later = len(found) - len(compared)
        if not compared:
            return f"{name}: {format_count(later, 'anchor is', 'anchors are')} later than this copy, and none earlier, so nothing was compared with it"
        newest, reason = compared[0], found[-1].reason
        proven = sorted((entries, time) for entries, time in self._times.get(name, {}).items() if time is not None)
        return (
            f"{name}: the trail contains {format_count(len(compared), 'anchor')}, the newest of {newest.head.entries} entries at {newest.time} by its writer's clock"
            + (f"; {format_count(later, 'anchor is', 'anchors are')} later than this copy" if later else "")
            + (f"; a rollback was accepted before: {reason}" if reason else "")
            + (f"; the first time stamp proves {proven[0][0]} entries at {proven[0][1]}" if proven else "")
        )

    def _comparable(self, name: str) -> list[Anchor]:
        """Return a witness's anchors; for a copy, only the anchors that are not later than the copy."""
        return [one for one in self._anchors[name] if not self._is_copy or one.head.entries <= self._entries]

    def _lacking(self, name: str) -> list[Anchor]:
        """Return a witness's anchors that the trail lacks, the earliest first."""
        ordered = sorted(self._comparable(name), key=lambda one: (one.head.entries, one.written))
        return [one for one in ordered if self._digests[one.head.entries] != one.head.digest]


app = typer.Typer(
    help="The ledger's audit trail, whether the ledger follows from it, and backups.", no_args_is_help=True
)

_LEDGER_COMPARED: Final = "none changed, left out or cut off; the ledger follows from it"
_LEDGER_NOT_COMPARED: Final = "none changed or left out; only the trail was checked: later entries may be cut off"

Verification = tuple[TrailHead, list[str], str]
"""A trail's head, the findings, and a sentence that says whether the ledger was compared too."""

_HEAD_PATTERN = re.compile(r"^([0-9]{1,18}):([0-9a-f]{64})$")

NotedHeads = Annotated[
    list[str] | None,
    typer.Option("--head", help="A head noted earlier, as NUMBER:DIGEST; repeat the option for several."),
]
_SinceText = Literal["nothing", "halt", "accept-loss"]
_IF_UNKNOWN: Final = "If unknown, 'halt' the sources, or 'accept-loss': budget may be granted twice."


@app.command("trail")
def trail(
    source: Annotated[str | None, typer.Option(help="Only entries of this source.")] = None,
    stream: Annotated[str | None, typer.Option(help="Only entries of this stream.")] = None,
    analyst: Annotated[str | None, typer.Option(help="Only this analyst's requests.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Show the latest N entries.")] = 50,
    export: Annotated[
        Path | None,
        typer.Option(help="Write all entries to a new file instead: .jsonl (unchanged), .csv or .parquet."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or export requests, decisions and events of streams."""
    given = {"source": source, "stream": stream, "analyst": analyst}
    filters = {name: value for name, value in given.items() if value is not None}
    batches = _matching_entries(filters, latest_first=export is None)
    if export is not None:
        count = write_trail(export, batches)
        typer.echo(f"{format_count(count, 'entry', 'entries')} in {export}")
        return
    with closing(batches):
        latest = [entry for entry, _ in islice(chain.from_iterable(batches), last)][::-1]
    if as_json:
        show_json(latest)
        return
    show_table(
        f"the latest {format_count(len(latest), 'entry', 'entries')}" if latest else "no entries",
        ["number", "time", "who", "what", "about", "decision", "left"],
        map(summary_row, latest),
    )


@app.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="A backup, or a trail exported as .jsonl; Kafka's topics if omitted.")
    ] = None,
    head: NotedHeads = None,
    as_json: AsJson = False,
) -> None:
    """Check that the trail is unchanged and that the ledger follows from it; exit status 1 if not.

    The chain of digests reveals every change, except if the whole trail and the ledger are rewritten, as a broker's
    administrator can. The heads of witnesses (SOTTO_WITNESSES), or a head that you have noted, reveal that too.
    """
    noted = [_parse_head(one) for one in head or ()]
    with explain_missing_packages():
        witnesses = WitnessChecks.open(local_settings(), is_copy=file is not None)
        end, findings, scope = (
            _verify_file(file, noted, witnesses) if file is not None else _verify_topics(noted, witnesses)
        )
    findings += witnesses.findings()
    if as_json:
        found = {"head": f"{end.entries}:{end.digest}", "entries": end.entries, "findings": findings}
        show_json({**found, "witnesses": witnesses.matches()})
    else:
        for line in (*findings, *witnesses.matches(), f"head {end.entries}:{end.digest}"):
            say(line, soft_wrap=True)
    if findings:
        raise CommandError(f"{format_count(len(findings), 'finding')}: see above what was changed or not checked")
    if not as_json:
        scope += "" if noted or witnesses.matches() else "; no witness and no --head: a rollback is not noticed"
        typer.echo(f"{format_count(end.entries, 'entry', 'entries')}, {scope}")


@app.command("export")
def export_ledger(file: Annotated[Path, typer.Argument(help="The new file.")]) -> None:
    """Back up the ledger, its trail and the workers' changelog into one owner-only file.

    Services may keep running: the file holds everything that was committed when the backup started. It has the names of
    sources, streams and analysts, but no private data and no noise key.
    """
    from stream.dev.backup_file import take_backup  # noqa: PLC0415  (other commands do without)

    with create_owner_only_file(file) as opened, translate_errors():
        ending = asyncio.run(take_backup(local_settings(), opened))
    counts = ", ".join(f"{count} of {topic}" for topic, count in ending.records.items())
    say(f"{file}: {counts}", soft_wrap=True)
    say(f"head {ending.head.entries}:{ending.head.digest}", soft_wrap=True)


@app.command("import")
def import_ledger(
    file: Annotated[Path, typer.Argument(help="The backup's file.")],
    since: Annotated[
        _SinceText,
        typer.Option(
            help=f"What was granted after the backup: 'nothing' if the services were stopped before it. {_IF_UNKNOWN}"
        ),
    ],
    head: NotedHeads = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into newly created, empty topics while no service runs.

    Every stream that was not closed ends for good and its whole grant counts as spent, because its later answers are unknown.
    """
    with explain_missing_packages():
        from stream.dev.backup_file import BackupFile  # noqa: PLC0415  (other commands do without)
        from stream.dev.ledger_restoration import restore_backup  # noqa: PLC0415
    noted = [_parse_head(one) for one in head or ()]
    since_code = cast("LostTimeStatement", since.replace("-", "_"))
    with translate_errors():
        sources, lost = asyncio.run(restore_backup(local_settings(), BackupFile(file), since_code, noted))
    if as_json:
        show_json({"sources": sources, "lost": lost, "since": since_code})
        return
    typer.echo(_describe_restored(sources, lost, since_code))


def _describe_restored(sources: int, lost: int, since: LostTimeStatement) -> str:
    outcome = {
        "nothing": "continue",
        "halt": "are halted, and so are populations",
        "accept_loss": "continue, although later grants are unknown",
    }[since]
    return (
        f"sources ({sources}) {outcome}; streams that were not closed ({lost}) have ended: they are halted or, as before, exhausted, and their grants count as spent"
        + ("; close them if a budget renews: until then they count in each of its periods" if lost else "")
    )


@app.command("accept-rollback")
def continue_after_rollback(
    since: Annotated[
        _SinceText,
        typer.Option(
            help="What was granted after the state that Kafka has now: 'nothing' if only the workers' topics were rolled "
            f"back. {_IF_UNKNOWN}"
        ),
    ],
    reason: Annotated[str, typer.Option(help="The reason; the trail and the witnesses keep it.")],
) -> None:
    """Continue from topics that are older than an anchor of a witness, while the budget service is stopped.

    Every stream that was not closed ends for good and its whole grant counts as spent, because its later answers are unknown.
    """
    with explain_missing_packages():
        from stream.dev.ledger_restoration import accept_rollback  # noqa: PLC0415  (other commands do without)
    if not reason.strip():
        raise CommandError("--reason: is empty; say why, because the trail and the witnesses keep it")
    since_code = cast("LostTimeStatement", since.replace("-", "_"))
    with translate_errors():
        sources, lost = asyncio.run(accept_rollback(local_settings(), since_code, reason))
    typer.echo(_describe_restored(sources, lost, since_code))


def _parse_head(text: str) -> TrailHead:
    if (found := _HEAD_PATTERN.match(text)) is None:
        raise CommandError("--head: is not NUMBER:DIGEST; copy it from the output of an earlier check")
    return TrailHead(entries=int(found[1]), digest=found[2], time=0)


def _matching_entries(
    filters: Mapping[str, str], *, latest_first: bool
) -> Generator[list[tuple[TrailRecord, bytes]], None, None]:
    """Yield batches of the entries whose fields equal ``filters``; raise Unknown if the source does not exist."""
    found = False
    for values in _read_trail(read_latest_first if latest_first else read_topic):
        entries = [(trail_codec.decode(value), value) for value in values]
        batch = [
            one for one in entries if all(getattr(one[0], name, None) == value for name, value in filters.items())
        ]
        found |= bool(batch)
        yield batch
    if not found and "source" in filters:
        with Client() as client:
            client.budget(filters["source"])


def _read_trail(
    read_batches: Callable[[KafkaConnection, str], AsyncGenerator[Sequence[Any], None]],
) -> Iterator[Sequence[bytes]]:
    with asyncio.Runner() as runner, _open_connection(runner) as connection:
        batches = read_batches(connection, connection.topics.trail)
        try:
            while (batch := runner.run(next_item(batches))) is not None:
                yield [record.value or b"" for record in batch]
        finally:
            runner.run(batches.aclose())


@contextmanager
def _open_connection(runner: asyncio.Runner) -> Iterator[KafkaConnection]:
    with translate_errors():
        connection = KafkaConnection(local_settings())
        runner.run(connection.open())
        try:
            yield connection
        finally:
            runner.run(connection.close())


def _verify_topics(noted: Iterable[TrailHead], witnesses: WitnessChecks) -> Verification:
    """Verify Kafka's topics: read the ledger, then the trail; compare both at the ledger's trail head."""
    from stream.budget.trail_verification import TrailCheck  # noqa: PLC0415  (needs the workers' packages)

    with asyncio.Runner() as runner, _open_connection(runner) as connection:
        ledger = runner.run(read_ledger_records(connection))
    head = next((one.trail for one in ledger if isinstance(one, LedgerProgress)), None) or EMPTY_TRAIL_HEAD
    check, compared = TrailCheck(noted), None
    try:
        for batch in _read_trail(read_topic):
            for value in batch:
                if check.head.entries == head.entries:
                    compared = check.compare_ledger(ledger)
                check.add_entry(value)
                witnesses.note_head(check.head)
    except BrokenTrailError as broken:
        return check.head, [str(broken)], _LEDGER_COMPARED
    compared = check.compare_ledger(ledger) if compared is None else compared
    if not ledger and check.head.entries:
        compared = [_LOST_LEDGER.format(entries=format_count(check.head.entries, "entry", "entries"))]
    return check.head, [*check.findings(), *compared, *check.missing_heads()], _LEDGER_COMPARED


_LOST_LEDGER: Final = (
    "the ledger is empty, but the trail has {entries}: the topic ledger was probably lost; do not register the sources "
    "again, but restore it (docs/operations.md, 'ledger was lost')"
)


def _verify_file(file: Path, noted: Iterable[TrailHead], witnesses: WitnessChecks) -> Verification:
    """Verify a file, which is a backup or an exported trail according to its content."""
    from stream.budget.trail_verification import TrailCheck  # noqa: PLC0415
    from stream.dev.backup_file import BackupFile, check_backup, is_backup  # noqa: PLC0415

    if is_backup(file):
        checked = check_backup(BackupFile(file), noted, witnesses.note_head)
        return checked.ending.head, [*checked.findings, *checked.missing_heads], _LEDGER_COMPARED
    _require_trail(file)
    check = TrailCheck(noted)
    try:
        for value in read_lines(file):
            check.add_entry(value)
            witnesses.note_head(check.head)
    except BrokenTrailError as broken:
        return check.head, [str(broken)], _LEDGER_NOT_COMPARED
    return check.head, [*check.findings(), *check.missing_heads()], _LEDGER_NOT_COMPARED


def _require_trail(file: Path) -> None:
    """Raise CommandError unless a file begins with an entry, because an empty file would pass the check."""
    first = next(read_lines(file), b"")
    try:
        trail_codec.decode(first)
    except MalformedEventError as error:
        problem = f"neither a backup nor a trail: its first line is not an entry ({error})" if first else "empty"
        raise CommandError(
            f"{file} is {problem}; give a file that 'sotto ledger export' wrote, or 'sotto ledger trail --export' with .jsonl"
        ) from None
