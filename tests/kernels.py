"""The compiled kernel that tests compare with Python."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import stream.kernel
from stream.kernel import load_kernel

ROOT = Path(__file__).parents[1]


@cache
def built_kernel() -> Any:
    """The kernel, built from the current source."""
    build = runpy.run_path(str(ROOT / "hatch_build.py"))["build"]
    made = build(Path(mkdtemp(prefix="sotto-kernel-")) / "kernel.so")
    return None if made is None else load_kernel(made)


def kernel() -> Any:
    """The kernel, built from the current source; without a compiler, tests that need it are skipped."""
    if (library := built_kernel()) is None:
        pytest.skip("no C compiler (cc, gcc or clang, or the package ziglang)")
    return library


@contextmanager
def use_kernel(library: Any) -> Iterator[None]:
    """Use another kernel, or no kernel, in a ``with`` block, so that results can be compared."""
    before, stream.kernel._library = stream.kernel._library, library
    try:
        yield
    finally:
        stream.kernel._library = before
