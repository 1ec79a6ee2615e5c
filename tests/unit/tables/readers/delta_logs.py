"""Changes logs of Delta tables as other writers may write them: with features, and with rows deleted in place."""

from __future__ import annotations

import json
import string
from base64 import b85encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

FIRST_ROW = bytes.fromhex("d1d33964 0100000000000000 00000000 3a30000001000000 00000000 10000000 0000")
"""A bitmap that contains 0, in the serialized form of Delta's protocol: magic number, number of parts, part 0, its Roaring bitmap."""


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change each entry of the newest commit in the log."""
    commit = max((folder / "_delta_log").glob("*.json"))
    entries = [json.loads(line) for line in commit.read_text().splitlines()]
    for entry in entries:
        change(entry)
    commit.write_text("\n".join(map(json.dumps, entries)))


def with_features(*names: str) -> Callable[[dict[str, Any]], object]:
    """Return a change of a commit after which readers need some features."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}

    def change(entry: dict[str, Any]) -> None:
        if entry.pop("commitInfo", None) is not None:
            entry["protocol"] = protocol

    return change


def z85(raw: bytes) -> str:
    """Return bytes as text in the alphabet of ZeroMQ's RFC 32, which differs from Python's base 85."""
    python = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    return b85encode(raw + bytes(-len(raw) % 4)).decode().translate(str.maketrans(python, zeromq))


def deleting(vector: dict[str, Any], *, where: str = "") -> Callable[[dict[str, Any]], object]:
    """Return a change of a commit that deletes rows in place by a deletion vector, in files with ``where`` in their paths."""

    def change(entry: dict[str, Any]) -> None:
        with_features("deletionVectors")(entry)
        if (added := entry.get("add")) and where in added["path"]:
            added["deletionVector"] = vector

    return change


def vector_in(storage: str, at: str) -> dict[str, Any]:
    return {
        "storageType": storage,
        "pathOrInlineDv": at,
        "offset": 1,
        "sizeInBytes": len(FIRST_ROW),
        "cardinality": 1,
    }


def write_vector(file: Path) -> None:
    """Write a file of deletion vectors: its version, then the size, bitmap and checksum of each vector."""
    size, checksum = (number.to_bytes(4, "big") for number in (len(FIRST_ROW), crc32(FIRST_ROW)))
    file.write_bytes(b"\x01" + size + FIRST_ROW + checksum)


INLINE = {"storageType": "i", "pathOrInlineDv": z85(FIRST_ROW), "sizeInBytes": len(FIRST_ROW), "cardinality": 1}
