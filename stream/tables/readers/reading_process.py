"""The process that reads one table for a service.

It runs as ``python -m stream.tables.readers.reading_process``. It reads a source and limits from standard input,
writes the encoded rows or a refusal to standard output, and exits. Linux's Landlock confines the process before it
imports the modules that read tables.
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

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system call numbers, equal on all processors that CPython supports."""
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVILEGES: Final = 38

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_TCP_RIGHTS: Final = 0b11
"""Landlock's rights to bind and to connect TCP sockets."""
_SCOPES: Final = 0b11
"""Landlock's scopes for abstract sockets and for signals."""
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of Landlock's file rights by the version that introduced them; n rights are the n lowest bits."""

_SYSTEM_PATHS: Final = (
    *("/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime"),
    *("/dev/null", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
)
"""System paths that the process may read: shared libraries, time zone, this process, processors and memory."""

_PACKAGES_FOLDER: Final = Path(__file__).resolve().parents[3]
"""The folder that has Sotto's packages: site-packages, or a source tree."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version of Landlock; 0 if it is not available."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(_system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)), 0)


def confine(readable: Iterable[Path]) -> bool:
    """Confine this process to reading these paths, Python's files and a few system files.

    Afterwards it cannot write, create or remove files, start programs, or see other processes' memory. Newer kernels
    also forbid truncation (from Linux 6.2 on), TCP (6.7) and signals to other processes (6.12). File modes and times,
    Unix sockets by path and UDP stay allowed.

    Return False, without a change, if Landlock is not available; OSError if it fails.
    """
    if not (known := landlock_version()):
        return False
    rights = (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= known)) - 1
    rules = _Ruleset(rights, _TCP_RIGHTS if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = _require_success(
        _system_call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    )
    try:
        for path in {*readable, *_program_paths(), *map(Path, _SYSTEM_PATHS)}:
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER)
        _allow(ruleset, _PACKAGES_FOLDER, _READ_FOLDER)
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))):
            raise _os_error()
        _require_success(_system_call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)
    return True


def _program_paths() -> Iterator[Path]:
    """Yield the paths of Python and its packages; the root of a source tree is left out, because it may have keys."""
    source_tree = _PACKAGES_FOLDER if _PACKAGES_FOLDER.joinpath("pyproject.toml").exists() else None
    for path in (sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        if path and Path(path).resolve() != source_tree:
            yield Path(path)
    yield from (_PACKAGES_FOLDER / "schemas", _PACKAGES_FOLDER / "stream")


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Allow access at or below a path; missing and forbidden paths are ignored."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not path.is_dir():
            rights &= ~_READ_FOLDER
        rule = _PathRule(rights, descriptor)
        _require_success(
            _system_call(
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                ctypes.byref(rule),
                ctypes.c_uint32(0),
            )
        )
    finally:
        os.close(descriptor)


def _system_call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    return result


def _require_success(result: int) -> int:
    if result < 0:
        raise _os_error()
    return result


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def main() -> None:
    """Read a request from standard input, and send the answer to standard output."""
    request = json.load(sys.stdin)
    _limit_resources(request["reading_bytes"], request["seconds"])
    # A table at an address has no listed files. It is read without confinement, because its driver reads settings
    # and credentials at unknown paths.
    if None not in request["parts"].values():
        confine(map(Path, request["folders"]))
    from stream.tables.readers.reading_protocol import answer_request  # noqa: PLC0415  (it begins threads)

    answer_request(request, sys.stdout.buffer)
    # Exit without waiting for threads: those of readers may wait for ever.
    os._exit(0)


def _limit_resources(memory: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit counts processor time, and threads may use all processors at once.
    seconds_of_all_processors = int(seconds) * (os.cpu_count() or 1) + 1
    _lower_limit(resource.RLIMIT_CPU, seconds_of_all_processors, seconds_of_all_processors + 1)
    # RLIMIT_DATA limits private writable memory, which tables use; programs and mapped files do not count.
    _lower_limit(resource.RLIMIT_DATA, memory, memory)


def _lower_limit(limit: int, soft: int, hard: int) -> None:
    """Set a limit, unless the process already has a lower one."""
    _, present_limit = resource.getrlimit(limit)
    if present_limit != resource.RLIM_INFINITY:
        soft, hard = min(soft, present_limit), min(hard, present_limit)
    resource.setrlimit(limit, (soft, hard))


if __name__ == "__main__":
    main()
