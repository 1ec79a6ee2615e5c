"""Whose files are: what nobody but this user and the administrator can have put in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

MAX_LINKS: Final = 40
"""Symbolic links followed from one to the next, as many as Linux follows."""
OTHERS_WRITE: Final = 0o022
"""The bits of a mode that let others write."""


def trusted_users() -> set[int]:
    """This user and the administrator, who has another number where a user namespace shows root as nobody."""
    return {0, os.geteuid(), Path("/").stat().st_uid}


def open_folder(path: Path) -> Path | None:
    """A folder on the way to a path by which others could put another in the path's place; None if there is none.

    In a sticky folder such as /tmp nobody can replace what is ours or the administrator's.

    Raises:
        OSError: If a folder on the way cannot be looked at.
    """
    trusted = trusted_users()
    ways = [path.absolute()]
    while ways[-1].is_symlink() and len(ways) < MAX_LINKS:
        ways.append(ways[-1].parent / ways[-1].readlink())
    ways.append(path.resolve())
    for place in {place for way in ways for place in (way, *way.parents)}:
        folder = place.parent
        status = folder.stat()
        if not stat.S_IMODE(status.st_mode) & OTHERS_WRITE:
            continue
        owner = place.lstat().st_uid if os.path.lexists(place) else os.geteuid()
        if not status.st_mode & stat.S_ISVTX or owner not in trusted:
            return folder
    return None
