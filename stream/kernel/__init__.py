"""Runs loops over the events of a batch: in the kernel, compiled from C, or without it in Python.

Both give the same bytes. The kernel does not depend on Kafka, streams or privacy. This module loads the kernel.
"""

from __future__ import annotations

import ctypes
import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from stream.settings import KERNEL_OFF, KERNEL_VARIABLE

SOURCE_FOLDER: Final = Path(__file__).parent
"""Folder of the C sources."""
LIBRARY_FILE: Final = SOURCE_FOLDER / "kernel.so"
"""The built library."""

_POINTER, _NUMBER, _UNSIGNED = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "sotto_derive": (
        _NUMBER,
        [_NUMBER, _POINTER, _POINTER, _POINTER, _NUMBER, *[_POINTER] * 4, _NUMBER, _POINTER],
    ),
    "sotto_enter": (None, [_POINTER, _NUMBER, _UNSIGNED, *[_POINTER] * 3, _NUMBER, _NUMBER]),
    "sotto_scan": (None, [_NUMBER, *[_POINTER] * 3, _NUMBER, _POINTER, _NUMBER, _UNSIGNED, *[_POINTER] * 7]),
    "sotto_gather": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _POINTER, _NUMBER]),
    "sotto_scatter": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _POINTER, _NUMBER]),
    "sotto_room": (_NUMBER, [_NUMBER, _POINTER, _NUMBER]),
    "sotto_pack": (_NUMBER, [_NUMBER, _POINTER, _NUMBER, *[_POINTER] * 3]),
    "sotto_crc32c": (_NUMBER, [_POINTER, _NUMBER]),
    "sotto_frame": (_NUMBER, [*[_NUMBER] * 4, *[_POINTER] * 7, _NUMBER, _POINTER]),
    "sotto_number": (
        _NUMBER,
        [_NUMBER, _POINTER, _POINTER, _NUMBER, _UNSIGNED, _POINTER, _NUMBER, *[_POINTER] * 2],
    ),
    "sotto_index": (None, [_NUMBER, *[_POINTER] * 2, _NUMBER, _UNSIGNED]),
    "sotto_bound": (
        _NUMBER,
        [_NUMBER, *[_POINTER] * 3, _NUMBER, _NUMBER, _UNSIGNED, _POINTER, _NUMBER, *[_POINTER] * 3],
    ),
    "sotto_add": (_NUMBER, [_NUMBER, _POINTER, _POINTER, _NUMBER, *[_POINTER] * 4, _NUMBER, *[_POINTER] * 2]),
    "sotto_group": (_NUMBER, [_NUMBER, *[_POINTER] * 5]),
    "sotto_fields": (None, [_NUMBER, *[_POINTER] * 3, _NUMBER, _NUMBER, *[_POINTER] * 10]),
    "sotto_numbers": (None, [_NUMBER, *[_POINTER] * 6]),
    "sotto_find": (None, [_NUMBER, *[_POINTER] * 6, _NUMBER, _UNSIGNED, _POINTER, _NUMBER, _POINTER]),
    "sotto_moments": (None, [_NUMBER, *[_POINTER] * 5, _NUMBER, _POINTER]),
    "sotto_names": (None, [_NUMBER, *[_POINTER] * 5]),
    "sotto_digests": (None, [_NUMBER, *[_POINTER] * 3, _NUMBER, *[_POINTER] * 2]),
    "sotto_unframe": (_NUMBER, [_POINTER, *[_NUMBER] * 8, *[_POINTER] * 6]),
}


def digest_sources(folder: Path) -> str:
    """Return a digest of the C sources in a folder."""
    return sha256(b"".join(source.read_bytes() for source in sorted(folder.glob("*.[ch]")))).hexdigest()


def _is_off() -> bool:
    return os.environ.get(KERNEL_VARIABLE, "").casefold() == KERNEL_OFF


def load_kernel(file: Path = LIBRARY_FILE) -> Any:
    """Load the compiled kernel; None if it is missing, built from other sources, or turned off."""
    if _is_off():
        return None
    try:
        library = ctypes.CDLL(str(file))
        library.sotto_source.restype = ctypes.c_char_p
        if library.sotto_source().decode() != digest_sources(SOURCE_FOLDER):
            return None
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def describe_missing_kernel() -> str | None:
    """Describe why there is no kernel, with a remedy; None if it is loaded or turned off."""
    if compiled_kernel() is not None or _is_off():
        return None
    state = "is of another version or platform" if LIBRARY_FILE.exists() else "is missing"
    return (
        f"the compiled kernel {state}, so loops over events run in Python, several times slower; install Sotto again, "
        "or run 'python hatch_build.py' in a source tree"
    )


def compiled_kernel() -> Any:
    """Return the kernel's functions, or None without a kernel."""
    return _library


_library = load_kernel()
