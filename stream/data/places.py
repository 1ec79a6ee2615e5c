"""Tables where they lie: in files of this machine, in an object store, or in a database.

What drives stores and databases is imported when an address asks for it, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from schemas import Address
from stream.data.delta import newest_local_parts
from stream.data.errors import DataError, UnreadableError
from stream.data.parts import CHANGED, Part, has_changed, local_delta, local_parts, require_size
from stream.data.sheets import FileSheet, Sheet

Stamp = tuple[object, ...]
"""What changes when the data behind a path may have changed; of one item where nothing can be told."""


def address_of(path: str) -> Address | None:
    """The address that a path is, if any; DataError if it is one in no form that is taken."""
    try:
        return Address.of_table(path)
    except ValueError as error:
        raise DataError(f"path: {error}") from None


def sheets_of(path: str, parts: Sequence[Part] | None = None, most_bytes: int | None = None) -> Iterator[Sheet]:
    """What a path stands for, one after the other; ``parts`` of this machine are as they were listed.

    Objects of a store, and the files that a log names, may have ``most_bytes`` together.

    After the last it is made sure that all of it is of one time: UnreadableError if a file has changed since it was listed.
    Of a database all is read in one snapshot.
    """
    if (address := address_of(path)) is None:
        listed = local_parts(path) if parts is None else parts
        if (folder := local_delta(path)) is not None:
            listed = newest_local_parts(folder, listed)
            require_size(listed, most_bytes)
        for part in listed:
            yield FileSheet.open(part)
        if any(map(has_changed, listed)):
            raise UnreadableError(CHANGED)
    elif address.scheme == "s3":
        from stream.data.objects import object_sheets  # noqa: PLC0415  (an extra)

        yield from object_sheets(address, most_bytes)
    else:
        from stream.data.postgresql import postgresql_sheets  # noqa: PLC0415  (an extra)

        yield from postgresql_sheets(address)


def stamp_of(path: str) -> Stamp:
    """The stamp of what a path stands for now. UnreadableError if a store or a server does not tell."""
    if (address := address_of(path)) is None:
        try:
            return stamp_of_parts(path, local_parts(path))
        except UnreadableError:
            # Reading says what is wrong with the path.
            return (path,)
    if address.scheme == "s3":
        from stream.data.objects import object_parts  # noqa: PLC0415  (an extra)

        return stamp_of_parts(path, object_parts(address))
    from stream.data.postgresql import snapshot  # noqa: PLC0415  (an extra)

    return (path, *snapshot(address))


def stamp_of_parts(path: str, parts: Sequence[Part]) -> Stamp:
    """The stamp of a path that stands for these files, as short for many as for one."""
    if not parts:
        return (path,)
    told = blake2b(digest_size=16)
    for part in parts:
        kept = part.kept or b""
        told.update(repr((part.location, part.stamp, part.cells, part.columns, part.rows, len(kept))).encode())
        told.update(kept)
    return (path, told.hexdigest())
