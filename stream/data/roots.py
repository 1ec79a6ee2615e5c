"""Where tables may lie: a deployment's allow-list of folders and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from schemas import Address
from stream.data.errors import DataError

Root = Path | Address

_address = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^:]*(?::[0-9]+(?:/[^:]*)?(?![^:]))?")


def parse_roots(text: str) -> tuple[Root, ...]:
    """The roots of one text, separated by colons as in ``PATH``.

    The colon of ``://`` separates nothing, nor does one before a server's port. Behind an address comes another, or a folder that
    begins with ``/`` or ``.``: anything else might be a part of the address. DataError, with the remedy, where that is not so.
    """
    return tuple(_parsed(text))


def _parsed(text: str) -> Iterator[Root]:
    at, is_behind_address = 0, False
    while at <= len(text):
        if (found := _address.match(text, at)) is not None:
            try:
                yield Address.of_root(found[0])
            except ValueError as error:
                raise DataError(f"SOTTO_TABLE_ROOTS: {error}") from None
            at, is_behind_address = found.end() + 1, True
            continue
        folder = text[at:].partition(":")[0]
        if folder and is_behind_address and not folder.startswith(("/", ".")):
            raise DataError(
                "SOTTO_TABLE_ROOTS: what stands behind an address and ':' might be a part of it; begin a folder there with '/' or "
                "'./', and an address with s3:// or postgresql://"
            )
        if folder:
            yield Path(folder)
        at += len(folder) + 1
        is_behind_address = is_behind_address and not folder


def is_within(path: Path, roots: tuple[Root, ...]) -> bool:
    """Whether a path, all links followed, lies in one of the folders; OSError or ValueError if there is no telling."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(root.resolve()) for root in roots if isinstance(root, Path))


def is_allowed(address: Address, roots: tuple[Root, ...]) -> bool:
    """Whether an address lies below one of the addresses."""
    return any(address.is_below(root) for root in roots if isinstance(root, Address))
