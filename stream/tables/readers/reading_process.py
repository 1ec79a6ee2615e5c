"""The process that reads one table for a service: ``python -m stream.tables.readers.reading_process``.

It reads a source and limits from standard input, writes the rows' codes or a refusal to standard
output, and exits. Code that reads tables is imported only after the process is confined (Landlock).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System call numbers, the same on all processors that CPython supports."""
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVILEGES: Final = 38

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_TCP: Final = 0b11
"""Landlock's rights to bind and to connect TCP sockets."""
_SCOPES: Final = 0b11
"""Landlock's scopes for abstract sockets and for signals."""
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights by the first Landlock version that has them; n rights are the n lowest bits."""

_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime"),
    *("/dev/null", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
)
"""Readable system paths: shared libraries, clocks, this process, processors and memory."""

_OURS: Final = Path(__file__).resolve().parents[3]
"""The folder of these packages: site-packages, or a source tree."""


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock; 0 if it is not available."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(_call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0)


def confine(readable: Iterable[Path]) -> bool:
    """Confine this process to reading these paths, Python's files and a few system files.

    It can no longer write, create or remove files, start programs, or see other processes' memory.
    Newer Linux kernels (6.2, 6.7, 6.12) also forbid truncation, TCP, and signals to other processes.
    File modes and times, Unix sockets by path and UDP stay allowed. Without Landlock, return False and
    change nothing; OSError if Landlock fails.
    """
    if not (known := version()):
        return False
    rights = (1 << max(count for since, count in _RIGHTS.items() if since <= known)) - 1
    rules = _Rules(rights, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = _checked(_call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    try:
        for path in {*readable, *_programs(), *map(Path, _SYSTEM)}:
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER)
        _allow(ruleset, _OURS, _READ_FOLDER)
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))):
            raise _failure()
        _checked(_call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)
    return True


def _programs() -> Iterator[Path]:
    """Yield the paths of Python and its packages, not the root of a source tree, which may have keys."""
    apart = _OURS if _OURS.joinpath("pyproject.toml").exists() else None
    for path in (sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        if path and Path(path).resolve() != apart:
            yield Path(path)
    yield from (_OURS / "schemas", _OURS / "stream")


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Allow access at or below a path; missing and forbidden paths are ignored."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not path.is_dir():
            rights &= ~_READ_FOLDER
        below = _Below(rights, opened)
        _checked(
            _call(
                _ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(below), ctypes.c_uint32(0)
            )
        )
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    called: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    return called


def _checked(result: int) -> int:
    if result < 0:
        raise _failure()
    return result


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def main() -> None:
    """Read a request from standard input, and send the table that it names."""
    request = json.load(sys.stdin)
    _limit(request["reading_bytes"], request["seconds"])
    # Reading an address needs drivers' settings and credentials, which may be anywhere.
    if request["parts"] is not None:
        confine(map(Path, request["folders"]))
    from stream.tables.readers.reading_protocol import send  # noqa: PLC0415  (it begins threads)

    send(request, sys.stdout.buffer)
    # Readers may have threads that still wait for a consumer.
    os._exit(0)


def _limit(memory: int, seconds: float) -> None:
    """Limit memory and time by the operating system, and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Threads use the time of several processors.
    most = int(seconds) * (os.cpu_count() or 1) + 1
    _lower(resource.RLIMIT_CPU, most, most + 1)
    # This limits private writable memory, which holds tables, not programs and mapped files.
    _lower(resource.RLIMIT_DATA, memory, memory)


def _lower(limit: int, soft: int, hard: int) -> None:
    """Set a limit, unless the process has a lower one, which it cannot raise."""
    _, given = resource.getrlimit(limit)
    if given != resource.RLIM_INFINITY:
        soft, hard = min(soft, given), min(hard, given)
    resource.setrlimit(limit, (soft, hard))


if __name__ == "__main__":
    main()
