"""The folder that Kafka's files are kept in: which it is, and that they are Kafka's and nobody else could have changed them.

Java runs whatever jar lies there, and what it remembers of a start, so that names alone say nothing.
"""

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Final

from stream.environment import CACHE_VARIABLE
from stream.kafka.broker_errors import BrokerError
from stream.kafka.broker_jars import KAFKA_VERSION, PINNED_JARS
from stream.ownership import OTHERS_WRITE, open_folder, trusted_users

__all__ = [
    "cache_folder",
    "is_complete",
    "is_pinned",
    "jar_name",
    "jars_folder",
    "require_own",
    "require_pinned",
]

_FALLBACK: Final = Path(".sotto/cache")


def cache_folder() -> Path:
    """The cache: `SOTTO_CACHE` if set, else the user's cache folder, else `.sotto/cache` in the working folder.

    The last is for those alone whose cache folder holds no Kafka and cannot be written, or who have no home. What is
    missing of it is made, for this user alone.

    Raises:
        BrokerError: If none can be written, or others may write it or a folder on the way to it.
    """
    candidates = _candidates()
    for cache in candidates:
        if is_complete(jars_folder(cache)) or _is_writable(cache):
            require_own(cache)
            return cache
    raise BrokerError(f"Cannot write to {candidates[-1]}; set {CACHE_VARIABLE} to a folder that can hold 50 MB")


def jars_folder(cache: Path) -> Path:
    """Where in a cache the jars of this version of Kafka are, with these digests."""
    pins = hashlib.sha256("".join(PINNED_JARS.values()).encode()).hexdigest()[:12]
    return cache / f"kafka-{KAFKA_VERSION}-{pins}"


def jar_name(coordinate: str) -> str:
    """The name of a jar's file."""
    _group, name, version = coordinate.split(":")
    return f"{name}-{version}.jar"


def is_complete(folder: Path) -> bool:
    """Whether there is a file by the name of every jar."""
    return all(os.path.isfile(folder / jar_name(coordinate)) for coordinate in PINNED_JARS)  # noqa: PTH113


def is_pinned(jar: Path, coordinate: str) -> bool:
    """Whether a file is what Kafka's authors published by this coordinate, by its SHA-256."""
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == PINNED_JARS[coordinate]


def require_own(folder: Path) -> None:
    """Require that nobody but this user and the administrator may write a folder, or put another in its place.

    Raises:
        BrokerError: If it is not so, with what to do.
    """
    elsewhere = f"set {CACHE_VARIABLE} to a folder of your own"
    try:
        if (reason := _open(folder.resolve())) is not None:
            raise _untrusted(folder, reason, f"{elsewhere}, or run 'chmod go-w {folder}' if it is yours")
        if (above := open_folder(folder)) is not None:
            raise _untrusted(folder, f"others may write {above}", f"{elsewhere}, or run 'chmod go-w {above}'")
    except OSError as error:
        raise _untrusted(folder, str(error), elsewhere) from error


def require_pinned(folder: Path) -> None:
    """Require that the folder's jars are Kafka's, all of them and no other, and that nobody else may write anything in it.

    Digests are taken once in a process, in 40 ms; owners and modes are looked at each time.

    Raises:
        BrokerError: If it is not so, with what to do.
    """
    require_own(folder.parent)
    try:
        for path in (folder, *_within(folder)):
            # Others are at work here, too: what they made for a moment may be gone.
            with suppress(FileNotFoundError):
                if (reason := _open(path)) is not None:
                    raise _untrusted(folder, reason, _delete(folder))
        _require_digests(folder)
    except OSError as error:
        raise _untrusted(folder, str(error), _delete(folder)) from error


def _candidates() -> list[Path]:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return [Path(given).absolute()]
    home = _home()
    platform = os.environ.get("XDG_CACHE_HOME")
    users: list[Path] = []
    if platform and Path(platform).is_absolute():
        users.append(Path(platform) / "sotto")
    elif home and sys.platform == "darwin":
        users.append(home / "Library" / "Caches" / "sotto")
    elif home:
        users.append(home / ".cache" / "sotto")
    return [*users, _FALLBACK.absolute()]


def _home() -> Path | None:
    # With HOME="" Python takes the root folder for home, and a container's root user could even write there.
    if os.environ.get("HOME") == "":
        return None
    try:
        return Path.home()
    except RuntimeError:
        return None


def _make_own(folder: Path) -> None:
    """Make a folder and those above it, unless they are there, for this user alone whatever the umask."""
    if not folder.is_dir():
        _make_own(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _is_writable(cache: Path) -> bool:
    try:
        _make_own(cache)
        with tempfile.TemporaryFile(dir=cache):
            return True
    except OSError:
        return False


def _within(folder: Path) -> Iterator[Path]:
    """What is in a folder, but for what lies in one that only its owner may enter: nobody else gets at it."""
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(path, name)
        folders[:] = [name for name in folders if not _is_private(Path(path, name))]


def _is_private(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return not stat.S_IMODE(folder.lstat().st_mode) & 0o077
    return True


def _open(path: Path) -> str | None:
    """Why somebody else could have changed what a path holds; None if nobody could."""
    status = path.lstat()
    if status.st_uid not in trusted_users():
        return f"{path} belongs to another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    return f"others may write {path}" if stat.S_IMODE(status.st_mode) & OTHERS_WRITE else None


@once
def _require_digests(folder: Path) -> None:
    known = {jar_name(coordinate) for coordinate in PINNED_JARS}
    jars = [path.name for path in folder.iterdir() if path.suffix.lower() == ".jar"]
    if others := sorted(set(jars) - known):
        raise _untrusted(folder, f"{others[0]} is not of Kafka, and Java would run it", _delete(folder))
    for coordinate in PINNED_JARS:
        if not is_pinned(folder / jar_name(coordinate), coordinate):
            raise _untrusted(folder, f"{jar_name(coordinate)} is not the pinned file", _delete(folder))


def _delete(folder: Path) -> str:
    return (
        f"delete {folder}, and the next start fetches Kafka anew, or set {CACHE_VARIABLE} to a folder of your own"
    )


def _untrusted(folder: Path, reason: str, remedy: str) -> BrokerError:
    return BrokerError(f"Kafka's files in {folder} are not to be trusted: {reason}; {remedy}")
