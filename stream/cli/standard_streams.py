"""Standard output and standard error of a command, whatever encoding they have and wherever they lead."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Final

_WHY: Final = {errno.EPIPE: "its reader has closed it", errno.EBADF: "it is closed"}

_WIDTH: Final = re.compile("[1-9][0-9]{0,4}", re.ASCII)


class OutputError(Exception):
    """Standard output does not take what a command prints; the message says why."""


class _Output(io.TextIOWrapper):
    r"""Standard output: a sign that its encoding lacks is written out, as ``\u03b5``, and a failed write is an OutputError.

    Every later write fails as the first one did, for libraries try writes and pass over failures. Once ``is_lost``, it takes and drops
    everything, so that nothing is left to fail while Python ends.
    """

    is_lost = False
    _failure: OutputError | None = None

    def write(self, text: str) -> int:
        """Write a text."""
        self._try(super().write, text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        self._try(super().flush)

    def _try(self, call: Callable[..., object], *arguments: str) -> None:
        if self.is_lost:
            return
        if self._failure is not None:
            raise self._failure
        try:
            call(*arguments)
        except OSError as error:
            why = _WHY.get(error.errno or 0, error.strerror)
            self._failure = OutputError(
                f"standard output: cannot be written ({why}); what the command changed stands, and its output is incomplete"
            )
            raise self._failure from None


class _Messages(io.TextIOWrapper):
    """Standard error, which loses what cannot be written: a command has done what it did, and ends with its status."""

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            super().flush()
        except OSError:
            return


class _Closed(io.RawIOBase):
    """A file that was closed before the command began."""

    def writable(self) -> bool:
        """It takes what is written until that is flushed."""
        return True

    def write(self, _: object) -> int:
        """Fail as the system does."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def take_over() -> None:
    """Put these in the place of the process's own; of streams that a program or a test has replaced nothing changes.

    A ``COLUMNS`` that is no width of a terminal is left out, for libraries end with what they cannot read.
    """
    if not _WIDTH.fullmatch(os.environ.get("COLUMNS", "")):
        os.environ.pop("COLUMNS", None)
    if sys.stdout is sys.__stdout__:
        sys.stdout = sys.__stdout__ = _over(_Output, sys.__stdout__)  # type: ignore[misc]
    if sys.stderr is sys.__stderr__:
        sys.stderr = sys.__stderr__ = _over(_Messages, sys.__stderr__)  # type: ignore[misc]


def give_up_output() -> None:
    """Drop what is still to be written to standard output."""
    if isinstance(sys.stdout, _Output):
        sys.stdout.is_lost = True


def _over(kind: type[io.TextIOWrapper], stream: object) -> io.TextIOWrapper:
    if not isinstance(stream, io.TextIOWrapper):
        return kind(io.BufferedWriter(_Closed()), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    encoding, is_line_buffered, is_written_through = stream.encoding, stream.line_buffering, stream.write_through
    return kind(
        stream.detach(),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=is_line_buffered,
        write_through=is_written_through,
    )
