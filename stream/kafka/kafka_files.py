"""Chooses the cache folder for Kafka's files, and verifies the files.

Java runs every jar and startup cache in the folder, so other users must not write there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache as cache_result
from pathlib import Path
from typing import Final

from stream.kafka.broker_process import BrokerError
from stream.secret_files import OTHERS_WRITE_BITS, find_writable_folder, trusted_users
from stream.settings import CACHE_VARIABLE

KAFKA_VERSION: Final = "4.3.1"


# The file has the dependencies of `org.apache.kafka:kafka_2.13`, and the bridge from SLF4J to Log4j. They are listed,
# because resolving them takes twice as long as the download, and Maven has only SHA-1 digests.
PINNED_JARS: Final[dict[str, str]] = dict(
    line.split() for line in Path(__file__).with_name("kafka_jars.txt").read_text().splitlines()
)
"""SHA-256 in hexadecimal by Maven coordinate (`group:artifact:version`)."""

_FALLBACK_CACHE: Final = Path(".sotto/cache")


def cache_folder() -> Path:
    """Chooses `SOTTO_CACHE`, or else the user's cache folder, or else `.sotto/cache`.

    `.sotto/cache` in the working folder is used if the user has no home folder, or if the user's cache folder
    contains no Kafka and cannot be written. Only this user can write to created folders. BrokerError if no folder
    can be written, or other users may write to it or to a folder above it.
    """
    candidates = _cache_candidates()
    for cache in candidates:
        if is_complete(jars_folder(cache)) or _is_writable(cache):
            require_own_folder(cache)
            return cache
    raise BrokerError(f"Cannot write to {candidates[-1]}; set {CACHE_VARIABLE} to a folder that can hold 50 MB")


def jars_folder(cache: Path) -> Path:
    """Returns the folder in the cache for the jars of this Kafka version and these digests."""
    pins = hashlib.sha256("".join(PINNED_JARS.values()).encode()).hexdigest()[:12]
    return cache / f"kafka-{KAFKA_VERSION}-{pins}"


def jar_name(coordinate: str) -> str:
    """Returns the file name of a jar."""
    _group, name, version = coordinate.split(":")
    return f"{name}-{version}.jar"


def is_complete(folder: Path) -> bool:
    """Returns whether a folder has a file for every jar."""
    return all(os.path.isfile(folder / jar_name(coordinate)) for coordinate in PINNED_JARS)  # noqa: PTH113


def is_pinned(jar: Path, coordinate: str) -> bool:
    """Returns whether a file has the pinned SHA-256 of a coordinate."""
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == PINNED_JARS[coordinate]


def require_own_folder(folder: Path) -> None:
    """Checks that only this user and the administrator can write or replace a folder.

    BrokerError if other users can write to it; the message has a remedy.
    """
    other_folder_remedy = f"set {CACHE_VARIABLE} to a folder of your own"
    try:
        if (reason := _why_untrusted(folder.resolve())) is not None:
            raise _untrusted_error(
                folder, reason, f"{other_folder_remedy}, or run 'chmod go-w {folder}' if it is yours"
            )
        if (above := find_writable_folder(folder)) is not None:
            raise _untrusted_error(
                folder, f"others may write {above}", f"{other_folder_remedy}, or run 'chmod go-w {above}'"
            )
    except OSError as error:
        raise _untrusted_error(folder, str(error), other_folder_remedy) from error


def require_pinned(folder: Path) -> None:
    """Checks that a folder has only Kafka's jars and that other users cannot write to it.

    The digests are checked once per process (40 ms); owners and modes are checked on each call. BrokerError if a
    check fails; the message has a remedy.
    """
    require_own_folder(folder.parent)
    try:
        for path in (folder, *_paths_in(folder)):
            # Another process of this user may have deleted a temporary file.
            with suppress(FileNotFoundError):
                if (reason := _why_untrusted(path)) is not None:
                    raise _untrusted_error(folder, reason, _deletion_remedy(folder))
        _require_digests(folder)
    except OSError as error:
        raise _untrusted_error(folder, str(error), _deletion_remedy(folder)) from error


def _cache_candidates() -> list[Path]:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return [Path(given).absolute()]
    home = _home_folder()
    platform = os.environ.get("XDG_CACHE_HOME")
    users: list[Path] = []
    if platform and Path(platform).is_absolute():
        users.append(Path(platform) / "sotto")
    elif home and sys.platform == "darwin":
        users.append(home / "Library" / "Caches" / "sotto")
    elif home:
        users.append(home / ".cache" / "sotto")
    return [*users, _FALLBACK_CACHE.absolute()]


def _home_folder() -> Path | None:
    # With HOME="", Python returns /, in which the root user of a container would create files.
    if os.environ.get("HOME") == "":
        return None
    try:
        return Path.home()
    except RuntimeError:
        return None


def _make_private_folder(folder: Path) -> None:
    """Creates a folder and its missing parents with mode 0700, whatever the umask."""
    if not folder.is_dir():
        _make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _is_writable(cache: Path) -> bool:
    try:
        _make_private_folder(cache)
        with tempfile.TemporaryFile(dir=cache):
            return True
    except OSError:
        return False


def _paths_in(folder: Path) -> Iterator[Path]:
    """Lists the paths in a folder, without the contents of owner-only folders."""
    for path, folders, files in os.walk(folder):
        yield from (Path(path, name) for name in (*folders, *files))
        folders[:] = [name for name in folders if not _is_private(Path(path, name))]


def _is_private(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return not stat.S_IMODE(folder.lstat().st_mode) & 0o077
    return True


def _why_untrusted(path: Path) -> str | None:
    """Returns why another user could have changed a path; None if no other user could."""
    status = path.lstat()
    if status.st_uid not in trusted_users():
        return f"{path} belongs to another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    return f"others may write {path}" if stat.S_IMODE(status.st_mode) & OTHERS_WRITE_BITS else None


@cache_result
def _require_digests(folder: Path) -> None:
    known = {jar_name(coordinate) for coordinate in PINNED_JARS}
    jars = [path.name for path in folder.iterdir() if path.suffix.lower() == ".jar"]
    if others := sorted(set(jars) - known):
        raise _untrusted_error(
            folder, f"{others[0]} is not one of Kafka's files, and Java would run it", _deletion_remedy(folder)
        )
    for coordinate in PINNED_JARS:
        if not is_pinned(folder / jar_name(coordinate), coordinate):
            raise _untrusted_error(
                folder, f"{jar_name(coordinate)} is not the pinned file", _deletion_remedy(folder)
            )


def _deletion_remedy(folder: Path) -> str:
    return (
        f"delete {folder}, and the next start fetches Kafka again, or set {CACHE_VARIABLE} to a folder of your own"
    )


def _untrusted_error(folder: Path, reason: str, remedy: str) -> BrokerError:
    return BrokerError(f"Kafka's files in {folder} cannot be trusted: {reason}; {remedy}")
