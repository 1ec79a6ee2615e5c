"""``sotto ledger``: the audit trail, whether the ledger follows from it, and backups."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas import LedgerProgress, LedgerRecord, TrailHead, TrailRecord
from schemas.trail import Since as MeantSince
from schemas.wire import MalformedEventError
from stream.cli.manage.record_rows import decoded, first_line, new_file, read_lines, told, write_trail
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.client import AsyncClient
from stream.client.kafka_connection import Connection, translated
from stream.client.ledger_reader import read_accounts, read_trail
from stream.kafka.client.local_address import settings_here
from stream.optional_packages import explained
from stream.processing.receipts import EMPTY, BrokenTrailError, trail_codec

app = typer.Typer(
    help="The ledger's audit trail, whether the ledger follows from it, and backups.", no_args_is_help=True
)

_WITH_THE_LEDGER: Final = "the ledger follows from it"
_TRAIL_ALONE: Final = "the trail alone was looked at"

Verified = tuple[TrailHead, list[str], str]
"""Where a trail ends, what is wrong, and what was looked at."""

_HEAD = re.compile(r"^([0-9]{1,18}):([0-9a-f]{64})$")

Noted = Annotated[
    list[str] | None,
    typer.Option("--head", help="A head that was noted down before, as it was shown; may be given again."),
]
File = Annotated[Path, typer.Argument(help="The backup's file.")]


class Since(StrEnum):
    """What is known of the time after a backup."""

    NOTHING = "nothing"
    HALT = "halt"
    ACCEPT_LOSS = "accept-loss"


_MEANT: dict[Since, MeantSince] = {
    Since.NOTHING: "nothing",
    Since.HALT: "halt",
    Since.ACCEPT_LOSS: "accept_loss",
}


@app.command("trail")
def trail(
    source: Annotated[str | None, typer.Option(help="Only what concerns this source.")] = None,
    stream: Annotated[str | None, typer.Option(help="Only what concerns this stream.")] = None,
    analyst: Annotated[str | None, typer.Option(help="Only what this analyst asked for.")] = None,
    last: Annotated[int, typer.Option(min=1, help="So many entries, the latest.")] = 50,
    export: Annotated[
        Path | None,
        typer.Option(help="Write all of them to a new file instead: .jsonl as they are, .csv, or .parquet."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who asked for what, what was decided and what followed, or export it."""
    given = {"source": source, "stream": stream, "analyst": analyst}
    batches = _concerning({name: value for name, value in given.items() if value is not None})
    if export is not None:
        count = write_trail(export, batches)
        typer.echo(f"{count} entries in {export}")
        return
    latest = deque((entry for batch in batches for entry, _ in batch), last)
    if as_json:
        show_json(list(latest))
        return
    show_table(
        f"the latest {len(latest)} entries" if latest else "no entries",
        ["number", "time", "who", "what", "about", "decision", "left"],
        map(told, latest),
    )


@app.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="A backup, or a trail exported as .jsonl; without one, what Kafka holds.")
    ] = None,
    head: Noted = None,
    as_json: AsJson = False,
) -> None:
    """Check that the trail is the one that was written, and that the ledger follows from it; exit status 1 if not.

    A chain tells of every change, but to whoever can write all of it anew, the ledger too, as a broker's administrator can. Note the
    head down elsewhere, and give it the next time: then they cannot either.
    """
    noted = [_head(one) for one in head or ()]
    with explained():
        end, findings, looked_at = _verified_file(file, noted) if file is not None else _verified(noted)
    if as_json:
        show_json({"head": f"{end.entries}:{end.digest}", "entries": end.entries, "findings": findings})
    else:
        for finding in findings:
            say(finding, soft_wrap=True)
        say(f"head {end.entries}:{end.digest}", soft_wrap=True)
    if findings:
        raise CommandError(f"{len(findings)} findings: the trail or the ledger is not what was written")
    if not as_json:
        typer.echo(f"{end.entries} entries, none changed, left out or cut off; {looked_at}")


@app.command("export")
def export_ledger(file: Annotated[Path, typer.Argument(help="The new file.")]) -> None:
    """Back up the ledger, its trail and the workers' changelog into one file, which its owner alone may read.

    Services may go on meanwhile: the file has all that was committed when it was begun. It holds what budgets, questions and people are named, and no
    private data and no noise key.
    """
    from stream.dev.backup.backup_transfer import take_backup  # noqa: PLC0415  (other commands do without)

    with new_file(file) as opened, translated():
        ending = asyncio.run(take_backup(settings_here(), opened))
    counts = ", ".join(f"{count} of {topic}" for topic, count in ending.records.items())
    say(f"{file}: {counts}", soft_wrap=True)
    say(f"head {ending.head.entries}:{ending.head.digest}", soft_wrap=True)


@app.command("import")
def import_ledger(
    file: File,
    since: Annotated[
        Since,
        typer.Option(
            help="What was granted after the backup was taken: nothing, for the services were stopped before; or it is not known, and "
            "sources halt, or go on (accept-loss) with budgets that may be granted twice."
        ),
    ],
    head: Noted = None,
    as_json: AsJson = False,
) -> None:
    """Bring a backup back into topics that are made for it and empty, while no service runs.

    Every stream that was not closed is halted for good and counts as wholly spent: what it answered since is not known.
    """
    with explained():
        from stream.dev.backup.backup_file import BackupFile  # noqa: PLC0415  (other commands do without)
        from stream.dev.backup.backup_transfer import bring_back  # noqa: PLC0415
    noted = [_head(one) for one in head or ()]
    meant = _MEANT[since]
    with translated():
        sources, lost = asyncio.run(bring_back(settings_here(), BackupFile(file), meant, noted))
    if as_json:
        show_json({"sources": sources, "lost": lost, "since": meant})
        return
    said = {
        "nothing": "go on",
        "halt": "are halted, and so are populations",
        "accept_loss": "go on, whatever was granted since",
    }[meant]
    typer.echo(
        f"{sources} sources {said}; {lost} streams were not closed: they are halted and count as wholly spent"
        + ("; close them where a budget renews, for they count in each of its periods until then" if lost else "")
    )


def _head(text: str) -> TrailHead:
    if (found := _HEAD.match(text)) is None:
        raise CommandError("--head: give it as it was shown, NUMBER:DIGEST")
    return TrailHead(entries=int(found[1]), digest=found[2], time=0)


def _concerning(wanted: Mapping[str, str]) -> Iterator[list[tuple[TrailRecord, bytes]]]:
    """The entries with these fields, some at a time; Unknown if there are none and the source is not registered."""
    found = False
    for values in _batches():
        batch = [
            one
            for one in decoded(values)
            if all(getattr(one[0], name, None) == value for name, value in wanted.items())
        ]
        found |= bool(batch)
        yield batch
    if not found and "source" in wanted:
        asyncio.run(_require_source(wanted["source"]))


async def _require_source(name: str) -> None:
    async with AsyncClient() as client:
        await client.budget(name)


def _batches() -> Iterator[Sequence[bytes]]:
    """The trail as Kafka holds it, some entries at a time."""
    with asyncio.Runner() as runner, translated():
        connection = Connection(settings_here())
        runner.run(connection.open())
        each = read_trail(connection)
        try:
            while (batch := runner.run(_next(each))) is not None:
                yield batch
        finally:
            runner.run(each.aclose())
            runner.run(connection.close())


async def _next(each: AsyncGenerator[Sequence[bytes], None]) -> Sequence[bytes] | None:
    return await anext(each, None)


def _verified(noted: Iterable[TrailHead]) -> Verified:
    """Check what Kafka holds: the ledger first, then the trail up to where the ledger says that it ends, and beyond."""
    from stream.budget.trail_verification import TrailCheck  # noqa: PLC0415  (needs what workers need)

    async def accounts() -> list[LedgerRecord]:
        connection = Connection(settings_here())
        await connection.open()
        try:
            return await read_accounts(connection)
        finally:
            await connection.close()

    with translated():
        ledger = asyncio.run(accounts())
    head = next((one.trail for one in ledger if isinstance(one, LedgerProgress)), None) or EMPTY
    check, compared = TrailCheck(noted), None
    try:
        for batch in _batches():
            for value in batch:
                if check.head.entries == head.entries:
                    compared = check.compare_ledger(ledger)
                check.add_entry(value)
    except BrokenTrailError as broken:
        return check.head, [str(broken)], _WITH_THE_LEDGER
    compared = check.compare_ledger(ledger) if compared is None else compared
    return check.head, [*check.findings(), *compared, *check.missing()], _WITH_THE_LEDGER


def _verified_file(file: Path, noted: Iterable[TrailHead]) -> Verified:
    """Check a file by what is in it; what it is named says nothing."""
    from stream.budget.trail_verification import TrailCheck  # noqa: PLC0415
    from stream.dev.backup.backup_file import (  # noqa: PLC0415
        BackupFile,
        check_backup,
        is_backup,
    )

    if is_backup(file):
        checked = check_backup(BackupFile(file), noted)
        return checked.ending.head, [*checked.findings, *checked.missing], _WITH_THE_LEDGER
    _require_trail(file)
    check = TrailCheck(noted)
    try:
        for value in read_lines(file):
            check.add_entry(value)
    except BrokenTrailError as broken:
        return check.head, [str(broken)], _TRAIL_ALONE
    return check.head, [*check.findings(), *check.missing()], _TRAIL_ALONE


def _require_trail(file: Path) -> None:
    """CommandError if a file does not begin with an entry: an empty one would pass for a trail that nobody has changed."""
    remedy = "give a file that 'sotto ledger export' wrote, or 'sotto ledger trail --export' with .jsonl"
    if (first := first_line(file)) is None:
        raise CommandError(f"{file} is empty; {remedy}")
    try:
        trail_codec.decode(first)
    except MalformedEventError as error:
        raise CommandError(
            f"{file} is neither a backup nor a trail: its first line is no entry ({error}); {remedy}"
        ) from None
