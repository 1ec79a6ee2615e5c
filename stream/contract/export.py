"""The contract as files: a JSON Schema per event, the AsyncAPI document, and the documents of released versions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from stream.contract.asyncapi import document
from stream.contract.compatibility import breaks
from stream.contract.events import CONTRACT_VERSION, EVENTS
from stream.contract.json_schemas import Json, standalone

DOCUMENT: Final = "asyncapi.json"
SCHEMAS: Final = "schemas"
VERSIONS: Final = "versions"


class ContractError(RuntimeError):
    """The contract's files are missing, unreadable, or must not be written; the message says what to do."""


def files() -> dict[str, str]:
    """The text of every generated file by its path in the contract's folder."""
    schemas = {f"{SCHEMAS}/{_file_name(event.name)}": standalone(event) for event in EVENTS}
    return {name: _text(content) for name, content in {DOCUMENT: document(), **schemas}.items()}


def export(folder: Path) -> list[str]:
    """Write the generated files into ``folder``, drop those of events that are no more, and name what changed."""
    drifted = drift(folder)
    wanted = files()
    for name in drifted:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return drifted


def drift(folder: Path) -> list[str]:
    """Names of the generated files that are missing from ``folder``, out of date, or no longer generated."""
    wanted = files()
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace")
        for path in (folder / DOCUMENT, *(folder / SCHEMAS).glob("*"))
        if path.is_file()
    }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def release(folder: Path) -> Path:
    """Keep the current document as that of the contract's version, to compare later ones with, and give its path.

    Raises:
        ContractError: the version was released already, or breaks one that was.
    """
    path = folder / VERSIONS / ".".join(CONTRACT_VERSION.split(".")[:2]) / DOCUMENT
    if path.exists():
        raise ContractError(
            f"{path} was released already; raise CONTRACT_VERSION, or delete it if nobody has it yet"
        )
    found = broken(folder)
    if found:
        raise ContractError(f"version {CONTRACT_VERSION} breaks released ones: {'; '.join(found[:3])}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document()), encoding="utf-8")
    return path


def broken(folder: Path) -> list[str]:
    """What the current contract breaks of the released versions with its major number, in words.

    Raises:
        ContractError: a released document cannot be read.
    """
    major = CONTRACT_VERSION.split(".", 1)[0]
    current = document()
    found = []
    for path in sorted((folder / VERSIONS).glob(f"{major}.*/{DOCUMENT}")):
        found += [f"{path.parent.name}: {one}" for one in breaks(_read(path), current)]
    return found


def _read(path: Path) -> Json:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"cannot read {path} ({type(error).__name__}); take it from the release") from None
    if not isinstance(content, dict):
        raise ContractError(f"{path} is no AsyncAPI document; take it from the release")
    return content


def _file_name(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", event).lower() + ".json"


def _text(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
