"""A file of names for a test's monitor, and the tokens of these names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import TokenFile, change_names

FILE = "names.json"


def make_names(folder: Path) -> dict[str, str]:
    """Write the file with one name for each role (the role's own name), and return the tokens."""
    return {role: give_token(folder, role, role) for role in get_args(AccessRole)}


def give_token(folder: Path, name: str, role: AccessRole) -> str:
    """Add a token of a name to the file."""

    def add(names: TokenFile) -> tuple[TokenFile, str]:
        changed, _, text = names.add_token(name, role, now=int(time.time()), expires=None)
        return changed, text

    return change_names(folder / FILE, add)


def revoke(folder: Path, which: str) -> None:
    """Revoke a name's tokens."""
    change_names(folder / FILE, lambda names: names.revoke(which, int(time.time())))
