"""Writes the contract's files and compares them with the released version."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from stream.dev.contract.asyncapi import document
from stream.dev.contract.contract_events import CONTRACT_VERSION, EVENTS
from stream.dev.contract.json_schemas import Json, standalone

DOCUMENT: Final = "asyncapi.json"
SCHEMAS: Final = "schemas"
VERSIONS: Final = "versions"
_NOTES: Final = frozenset({"title", "description", "summary", "default", "examples"})
"""Keys with explanations, which may change within a version; no field of an event has these names."""


class ContractError(RuntimeError):
    """A contract file is missing, unreadable or already released; the message has the remedy."""


def files() -> dict[str, str]:
    """Return the text of every generated file by its path in the folder."""
    schemas = {f"{SCHEMAS}/{_file_name(event.name)}": standalone(event) for event in EVENTS}
    return {name: _text(content) for name, content in {DOCUMENT: document(), **schemas}.items()}


def export(folder: Path) -> list[str]:
    """Write the generated files, delete obsolete ones, and return the changed names."""
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
    """Return the names of generated files that are missing, out of date or obsolete."""
    wanted = files()
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace")
        for path in (folder / DOCUMENT, *(folder / SCHEMAS).glob("*"))
        if path.is_file()
    }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def release(folder: Path) -> Path:
    """Save the current document as the released version, and return its path.

    Raises:
        ContractError: the version was released already.
    """
    path = _released(folder)
    if path.exists():
        raise ContractError(
            f"{path} was released already; raise CONTRACT_VERSION, or delete the file if it is unpublished"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document()), encoding="utf-8")
    return path


def is_changed(folder: Path) -> bool:
    """Whether the contract differs from its released version, ``_NOTES`` aside.

    Raises:
        ContractError: the released document cannot be read.
    """
    path = _released(folder)
    if not path.exists():
        return False
    try:
        released = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"cannot read {path} ({type(error).__name__}); take it from the release") from None
    return bool(_without_notes(released) != _without_notes(document()))


def _released(folder: Path) -> Path:
    return folder / VERSIONS / ".".join(CONTRACT_VERSION.split(".")[:2]) / DOCUMENT


def _without_notes(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_notes(one) for one in node]
    if isinstance(node, dict):
        return {name: _without_notes(inner) for name, inner in node.items() if name not in _NOTES}
    return node


def _file_name(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", event).lower() + ".json"


def _text(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
