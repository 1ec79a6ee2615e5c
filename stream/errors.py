"""Errors of clients and driver; all derive from ``SottoError``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # keeps the import of errors fast
    from collections.abc import Sequence

    from schemas import Amount, Answer, Query


class SottoError(Exception):
    """Base class of all errors of clients and driver; the message has a remedy.

    Example::

        try:
            result = client.ask("ward-7", value=250)
        except Rejected as error:
            print(error.reason)
        except SottoError as error:
            print(error)
    """


class Refused(SottoError):
    """The budget service refused a request; nothing has changed.

    ``asked`` is the requested amount and ``left`` the rest of the budget (both ε and δ), or None if
    the budget is not the reason.
    """

    def __init__(self, reason: str, asked: Amount | None = None, left: Amount | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.asked = asked
        self.left = left


class NotAnswered(SottoError):
    """A question was rejected or halted; ``answer`` is the published answer with its ``reason``."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"stream '{answer.stream}' {answer.outcome} the question: {answer.reason}")
        self.answer = answer
        self.reason = answer.reason


class Rejected(NotAnswered):
    """The question is invalid, or its stream is not open; nothing is charged."""


class Halted(NotAnswered):
    """The stream is halted or closed, or its worker refuses; ``reason`` has the cause."""


class Exhausted(Halted):
    """The stream's cutoff or grant is used up; extend or close it."""


class _Unanswered(SottoError):
    def __init__(self, message: str, unanswered: Sequence[Query] = (), results: Sequence[Answer] = ()) -> None:
        super().__init__(message)
        self.unanswered = tuple(unanswered)
        self.results = results


class Timeout(_Unanswered, TimeoutError):
    """No answer or receipt arrived in time; an answer may still arrive and be charged.

    ``unanswered`` has the questions without answer, and ``results`` the answers to the others.
    """


class Unknown(SottoError, LookupError):
    """The source, stream or other name does not exist."""


class Invalid(_Unanswered, ValueError):
    """An argument does not fit the contract; the message names the field.

    With many questions, ``results`` has the answers to the earlier ones, and ``unanswered`` those of
    the earlier ones that have no answer.
    """


class Unreachable(_Unanswered, ConnectionError):
    """Kafka cannot be reached, or has no such installation.

    ``unanswered`` has the pending questions, whose answers may still arrive and be charged;
    ``results`` has the answers to the others.
    """


class Forbidden(SottoError, PermissionError):
    """Kafka's access control denies the call to this principal."""


class Missing(SottoError, ImportError):
    """An optional package is missing; the message has the ``pip install`` command."""
