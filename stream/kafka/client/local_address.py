"""Finds a running local broker in the working folder or the nearest parent folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stream.kafka.broker.broker_process import HOST, is_alive, node_folder, read_own_cluster, read_own_state
from stream.settings import SECURITY_FIELDS, Settings, variable_of

FOLDER: Final = Path(".sotto")
"""The default folder of ``sotto up`` and ``sotto broker``."""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """The address of a running broker or cluster, and its folder."""

    bootstrap: str
    folder: Path


def sotto_folders_above(start: Path | None = None) -> Iterator[Path]:
    """Yields the path ``.sotto`` in a folder (default: working folder) and in each parent."""
    try:
        first = (start or Path.cwd()).absolute()
    except OSError:  # the working folder is gone
        return
    for folder in (first, *first.parents):
        yield folder / FOLDER


def local_address(start: Path | None = None) -> LocalAddress | None:
    """Finds the running broker or cluster of the nearest ``.sotto`` folder.

    Only owner-only files of this user are trusted.
    """
    for folder in sotto_folders_above(start):
        state = read_own_state(folder / "broker")
        if state is not None and is_alive(state.process):
            return LocalAddress(f"{HOST}:{state.port}", folder)
        cluster = read_own_cluster(folder / "broker")
        if cluster is not None and _any_node_runs(folder / "broker", len(cluster.nodes)):
            return LocalAddress(cluster.bootstrap, folder)
    return None


def _any_node_runs(folder: Path, nodes: int) -> bool:
    states = (read_own_state(node_folder(folder, number)) for number in range(1, nodes + 1))
    return any(state is not None and is_alive(state.process) for state in states)


def local_settings(**fields: Any) -> Settings:
    """Returns the settings; if neither address nor security is set, with the local broker's address."""
    settings = Settings(**fields)
    if settings.model_fields_set.isdisjoint({"bootstrap", *SECURITY_FIELDS}) and (found := local_address()):
        return settings.model_copy(update={"bootstrap": found.bootstrap})
    return settings


def address_origin(settings: Settings) -> str:
    """Describes for messages where the address in the settings comes from."""
    name = variable_of("bootstrap")
    if os.environ.get(name) == settings.bootstrap:
        return f"as {name} says"
    found = local_address()
    if found is not None and found.bootstrap == settings.bootstrap:
        return f"as {found.folder} says"
    if settings.bootstrap == type(settings).model_fields["bootstrap"].default:
        return f"the default: {name} is not set, and no broker runs from {FOLDER} here or above"
    return "as given"
