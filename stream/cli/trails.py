"""The audit trail as commands show it, and as the files that it is exported to."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from schemas import MAX_RECORD_BYTES, Amount, TrailRecord
from stream.asking.spreadsheets import cell
from stream.cli.output import CommandError, amount
from stream.extras import needed
from stream.processors.trails import entry_digest, trail_codec

_AMOUNTS: Final = ("asked", "left", "granted", "spent", "refunded")
_TOTALS: Final = ("granted", "spent", "refunded", "left")
_PARTS: Final = ("epsilon", "delta", "rho")
_WORDS: Final = (
    *(
        "kind",
        "action",
        "outcome",
        "event",
        "source",
        "population",
        "stream",
        "analyst",
        "allotment",
        "analysts",
        "by",
        "mechanism",
        "reason",
    ),
    *("request", "since"),
)
_NUMBERS: Final = ("epsilon", "delta")
_COUNTS: Final = ("answers", "sources", "streams", "lost")

ROWS_AT_ONCE: Final = 10_000

Row = dict[str, Any]


def row_of(entry: TrailRecord, value: bytes) -> Row:
    """One line of a table: every figure in a column of its own, and the entry byte for byte in the last."""
    row: Row = {"number": entry.number, "time": datetime.fromtimestamp(entry.time / 1000, UTC).isoformat()}
    row |= {name: getattr(entry, name, None) for name in (*_WORDS, *_NUMBERS, *_COUNTS)}
    row["analysts"] = " ".join(row["analysts"] or ()) or None
    for name in _AMOUNTS:
        row |= _parts(name, getattr(entry, name, None))
    totals = getattr(entry, "totals", None)
    for name in _TOTALS:
        row |= _parts(f"total_{name}", getattr(totals, name, None))
    return row | {"digest": entry_digest(value), "record": value.decode()}


def _parts(name: str, value: Amount | None) -> Row:
    return {f"{name}_{part}": getattr(value, part, None) for part in _PARTS}


def write_trail(path: Path, batches: Iterable[Sequence[tuple[TrailRecord, bytes]]]) -> int:
    """Write entries to a new file, by its ending: ``.jsonl`` as they are, ``.csv``, or ``.parquet`` (the extra ``arrow``).

    The file is its owner's alone. Gives the number of entries.
    """
    writer = {".jsonl": _write_lines, ".csv": _write_csv, ".parquet": _write_parquet}.get(path.suffix)
    if writer is None:
        raise CommandError(f"cannot export to {path.name}; give a name that ends with .jsonl, .csv or .parquet")
    count = 0

    def counted() -> Iterator[Sequence[tuple[TrailRecord, bytes]]]:
        nonlocal count
        for batch in batches:
            count += len(batch)
            yield batch

    with new_file(path) as file:
        writer(file, counted())
    return count


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that its owner alone may read; gone again if it is not written to its end."""
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
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_lines(file: IO[bytes], batches: Iterable[Sequence[tuple[TrailRecord, bytes]]]) -> None:
    for batch in batches:
        file.writelines(value + b"\n" for _, value in batch)


class _Encoded:
    """What the writer of CSV takes for a file of text."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


def _write_csv(file: IO[bytes], batches: Iterable[Sequence[tuple[TrailRecord, bytes]]]) -> None:
    writer = csv.DictWriter(_Encoded(file), list(_types()), lineterminator="\n")
    writer.writeheader()
    for batch in batches:
        writer.writerows({name: cell(value) for name, value in row_of(*one).items()} for one in batch)


def _types() -> dict[str, str]:
    """The columns and their types, in the names that Arrow has for them."""
    amounts = (*_AMOUNTS, *(f"total_{name}" for name in _TOTALS))
    return {
        "number": "int64",
        "time": "string",
        **dict.fromkeys(_WORDS, "string"),
        **dict.fromkeys(_NUMBERS, "float64"),
        **dict.fromkeys(_COUNTS, "int64"),
        **{f"{name}_{part}": "float64" for name in amounts for part in _PARTS},
        "digest": "string",
        "record": "string",
    }


def _write_parquet(file: IO[bytes], batches: Iterable[Sequence[tuple[TrailRecord, bytes]]]) -> None:
    arrow, parquet = needed("pyarrow", "arrow"), needed("pyarrow.parquet", "arrow")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _types().items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            for start in range(0, len(batch), ROWS_AT_ONCE):
                rows = [row_of(*one) for one in batch[start : start + ROWS_AT_ONCE]]
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def read_lines(path: Path) -> Iterator[bytes]:
    """The entries of an exported file of lines, byte for byte."""
    try:
        with path.open("rb") as file:
            yield from (line.rstrip(b"\n") for line in file)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def first_line(path: Path) -> bytes | None:
    """The first entry of such a file, as far as an entry may go; None if the file is empty."""
    try:
        with path.open("rb") as file:
            return file.readline(MAX_RECORD_BYTES + 2).rstrip(b"\n") or None
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def told(entry: TrailRecord) -> list[str]:
    """An entry as a line of a table for people: number, time, who, what, about what, outcome, and what of it is left."""
    when = datetime.fromtimestamp(entry.time / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    about = getattr(entry, "stream", None) or getattr(entry, "source", None) or getattr(entry, "population", None)
    totals = getattr(entry, "totals", None)
    left = amount(totals.left) if totals is not None else ""
    who = getattr(entry, "by", None) or getattr(entry, "analyst", None) or ""
    head = [str(entry.number), when, who]
    match entry.kind:
        case "request":
            granted = f" {amount(entry.granted)}" if entry.granted is not None else ""
            reason = f": {entry.reason}" if entry.reason else ""
            part = f"{entry.allotment}: ε {entry.epsilon:g} of {about}" if entry.allotment is not None else about
            return [*head, entry.action, part or "", f"{entry.outcome}{granted}{reason}", left]
        case "event":
            back = (
                f", {amount(entry.refunded)} back"
                if entry.event == "closed" and entry.refunded is not None
                else ""
            )
            spent = f"spent {amount(entry.spent)}" if entry.spent is not None else ""
            return [*head, entry.event, about or "", f"{spent}{back}", left]
        case "beginning":
            return [*head, "beginning", "", f"{entry.sources} sources, {entry.streams} streams were there", left]
        case "restored":
            return [*head, "restored", "", f"since the backup: {entry.since}; {entry.lost} streams halted", left]
        case _:
            spent = "" if totals is None else f"spent {amount(totals.spent)}"
            return [*head, entry.kind, about or "", spent, left]


def decoded(values: Iterable[bytes]) -> list[tuple[TrailRecord, bytes]]:
    """Entries beside their bytes."""
    return [(trail_codec.decode(value), value) for value in values]
