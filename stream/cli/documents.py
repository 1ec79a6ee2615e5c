"""What commands are given to read: JSON documents and files of lines, with one line for what is wrong with them."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.repeats import repeats_a_field
from schemas.shape import shape_fault
from schemas.wire import describe, parsed
from stream.cli.output import CommandError

Read = TypeVar("Read")

STANDARD_INPUT: Final = "-"


def read_as(kind: TypeAdapter[Read], argument: str) -> Read:
    """What a JSON document says that is given inline, as a file's path, or as ``-`` for standard input."""
    document = read_document(argument)
    try:
        return kind.validate_json(document)
    except ValidationError as error:
        raise CommandError(f"{name_of(argument)}: {describe(error, given=parsed(document))}") from None


def read_document(argument: str) -> str:
    """The text of such a document; none that gives a field twice."""
    document = _read(argument)
    if fault := shape_fault(document):
        raise CommandError(f"{name_of(argument)}: {fault}")
    try:
        repeated = repeats_a_field(document)
    except ValueError:
        return document  # whoever reads it says what is wrong with it
    if repeated:
        raise CommandError(f"{name_of(argument)}: a field is given twice; give each field once")
    return document


@contextmanager
def lines_of(argument: str) -> Iterator[Iterator[bytes]]:
    """The lines of a file, or of standard input for ``-``, without those that are blank."""
    with numbered_lines(argument) as lines:
        yield (line for _, line in lines)


@contextmanager
def numbered_lines(argument: str) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Open a file, or standard input for ``-``, as lines that are not blank, each with its number from 1."""
    if argument == STANDARD_INPUT:
        yield _numbered(sys.stdin.buffer)
        return
    try:
        with Path(argument).open("rb") as opened:
            yield _numbered(opened)
    except OSError as error:
        raise CommandError(
            f"cannot read {argument}: {error.strerror}; give a file, or - for standard input"
        ) from None


def _numbered(opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, read in enumerate(opened, 1):
        if line := (read if number > 1 else read.removeprefix(BOM_UTF8)).strip():
            yield number, line


def _read(argument: str) -> str:
    if not argument.strip():
        raise CommandError("document: is empty; give inline JSON, a file, or - for standard input")
    if _is_inline(argument):
        return argument
    try:
        data = sys.stdin.buffer.read() if argument == STANDARD_INPUT else Path(argument).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {argument}: {error.strerror}; give a file, '-' or inline JSON") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(
            f"{name_of(argument)}: is no text in UTF-8; save it as UTF-8 and give it again"
        ) from None


def name_of(argument: str) -> str:
    """Name a document in messages: by its file, or by what it is."""
    if _is_inline(argument):
        return "document"
    return "standard input" if argument == STANDARD_INPUT else argument


def _is_inline(argument: str) -> bool:
    """Whether an argument is the document itself: an object, a list, which no command takes, or blank."""
    stripped = argument.strip()
    return not stripped or stripped.startswith("{") or (stripped[0], stripped[-1]) == ("[", "]")
