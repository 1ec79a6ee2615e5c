"""The compiled kernel, where there is one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from stream.environment import KERNEL_OFF, KERNEL_VARIABLE

SOURCES: Final = Path(__file__).parent
"""The folder of the C."""
FILE: Final = SOURCES / "kernel.so"
"""Where a build puts it."""

_POINTER, _NUMBER, _DOUBLED = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "sotto_derive": (
        _NUMBER,
        [_NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER, *[_POINTER] * 4, _NUMBER, _POINTER],
    ),
    "sotto_enter": (None, [_POINTER, _NUMBER, _DOUBLED, *[_POINTER] * 3, _NUMBER, _NUMBER]),
    "sotto_scan": (
        None,
        [_NUMBER, *[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, _DOUBLED, *[_POINTER] * 7],
    ),
    "sotto_gather": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _POINTER, _NUMBER]),
    "sotto_scatter": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _POINTER, _NUMBER]),
    "sotto_room": (_NUMBER, [_NUMBER, _POINTER, _NUMBER]),
    "sotto_pack": (_NUMBER, [_NUMBER, _POINTER, _NUMBER, *[_POINTER] * 3]),
    "sotto_frame": (_NUMBER, [*[_NUMBER] * 4, *[_POINTER] * 7, _NUMBER, _POINTER]),
    "sotto_number": (
        _NUMBER,
        [_NUMBER, _POINTER, _POINTER, _NUMBER, _DOUBLED, _POINTER, _NUMBER, *[_POINTER] * 2],
    ),
    "sotto_index": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _DOUBLED]),
    "sotto_bound": (
        _NUMBER,
        [_NUMBER, *[_POINTER] * 3, _NUMBER, _NUMBER, _DOUBLED, _POINTER, _NUMBER, *[_POINTER] * 3],
    ),
    "sotto_add": (
        _NUMBER,
        [_NUMBER, _POINTER, _POINTER, _NUMBER, *[_POINTER] * 4, _NUMBER, *[_POINTER] * 2],
    ),
    "sotto_group": (_NUMBER, [_NUMBER, *[_POINTER] * 5]),
    "sotto_fields": (
        None,
        [_NUMBER, *[_POINTER] * 3, _NUMBER, _NUMBER, *[_POINTER] * 10],
    ),
    "sotto_numbers": (None, [_NUMBER, *[_POINTER] * 6]),
    "sotto_find": (None, [_NUMBER, *[_POINTER] * 6, _NUMBER, _DOUBLED, _POINTER, _NUMBER, _POINTER]),
    "sotto_moments": (None, [_NUMBER, *[_POINTER] * 5, _NUMBER, _POINTER]),
    "sotto_names": (None, [_NUMBER, *[_POINTER] * 5]),
    "sotto_digests": (None, [_NUMBER, *[_POINTER] * 3, _NUMBER, *[_POINTER] * 2]),
    "sotto_unframe": (_NUMBER, [_POINTER, *[_NUMBER] * 8, *[_POINTER] * 6]),
}


class _Loaded:
    """What this process has loaded."""

    library: Any = None


def digest_of(folder: Path) -> str:
    """What tells this source from any other."""
    return sha256(b"".join(source.read_bytes() for source in sorted(folder.glob("*.[ch]")))).hexdigest()


def load(file: Path = FILE) -> Any:
    """The functions of a compiled kernel; None if there is no such file, or one that was built from another source.

    A process may be told to do without: see ``KERNEL_VARIABLE``.
    """
    if os.environ.get(KERNEL_VARIABLE, "").casefold() == KERNEL_OFF:
        return None
    try:
        library = ctypes.CDLL(str(file))
        library.sotto_source.restype = ctypes.c_char_p
        if library.sotto_source().decode() != digest_of(SOURCES):
            return None
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def compiled() -> Any:
    """The kernel's functions, None where it is done in Python."""
    return _Loaded.library


@contextmanager
def use(library: Any) -> Iterator[None]:
    """Do with this kernel, or without any, for a while: to compare the two."""
    before, _Loaded.library = _Loaded.library, library
    try:
        yield
    finally:
        _Loaded.library = before


_Loaded.library = load()
