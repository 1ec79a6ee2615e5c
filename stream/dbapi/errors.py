"""The errors of DB-API 2.0, with the messages of ``SottoError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stream.errors import Forbidden, Invalid, NotAnswered, SottoError, Timeout, Unknown, Unreachable


class Warning(UserWarning):  # noqa: A001  (the name that DB-API requires)
    """A warning about an answer, such as a number that is not informative."""


class Error(Exception):
    """Base class of all errors of this module."""


class InterfaceError(Error):
    """The connection or the cursor is closed, or has no result."""


class DatabaseError(Error):
    """Base class of the errors of an installation."""


class DataError(DatabaseError):
    """Required by DB-API; never raised."""


class OperationalError(DatabaseError):
    """The installation cannot answer: unreachable, forbidden, too late, too dear, halted or exhausted."""


class IntegrityError(DatabaseError):
    """Required by DB-API; never raised."""


class InternalError(DatabaseError):
    """Required by DB-API; never raised."""


class ProgrammingError(DatabaseError):
    """The statement, a parameter, a table or an option is wrong; nothing is charged."""


class NotSupportedError(DatabaseError):
    """Required by DB-API; never raised: a statement that is not supported is a ``ProgrammingError``."""


_CLASSES: Final[tuple[tuple[tuple[type[SottoError], ...], type[DatabaseError]], ...]] = (
    ((Invalid, Unknown), ProgrammingError),
    ((NotAnswered, Timeout, Unreachable, Forbidden), OperationalError),
    ((SottoError,), DatabaseError),
)


@contextmanager
def convert_errors() -> Iterator[None]:
    """Raise errors of clients as those of DB-API, with the same message."""
    try:
        yield
    except SottoError as error:
        kind = next(kind for causes, kind in _CLASSES if isinstance(error, causes))
        raise kind(str(error)) from None
