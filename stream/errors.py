"""What clients and the in-memory driver raise: one family, so that one ``except`` catches all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that a command need not build the whole contract to say what went wrong
    from collections.abc import Sequence

    from schemas import Amount, Answer, Query


class SottoError(Exception):
    """Whatever goes wrong between a program and an installation; the message says what to do."""


class Refused(SottoError):
    """The budget service refuses a request; nothing has changed. ``asked`` and ``left`` say what there is of the budget."""

    def __init__(self, reason: str, asked: Amount | None = None, left: Amount | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.asked = asked
        self.left = left


class NotAnswered(SottoError):
    """A question's answer is that it has none; ``answer`` is the whole of it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"stream '{answer.stream}' {answer.outcome} the question: {answer.reason}")
        self.answer = answer
        self.reason = answer.reason


class Rejected(NotAnswered):
    """The question is wrong, or its stream is not open; it costs nothing."""


class Halted(NotAnswered):
    """The stream is halted or closed, or its worker refuses for itself; the reason says which."""


class Exhausted(Halted):
    """The stream's grant pays for no ordinary answer any more."""


class _Unanswered(SottoError):
    def __init__(self, message: str, unanswered: Sequence[Query] = (), results: Sequence[Answer] = ()) -> None:
        super().__init__(message)
        self.unanswered = tuple(unanswered)
        self.results = results


class Timeout(_Unanswered, TimeoutError):
    """Nothing came in time; a question's answer may still come, and be charged.

    ``unanswered`` are the questions that wait; ``results`` are the answers that came to others asked with them.
    """


class Unknown(SottoError, LookupError):
    """There is no such source or stream."""


class Invalid(_Unanswered, ValueError):
    """A question or definition that the contract does not take; the message names the field.

    Of many questions, ``results`` are the answers that came to those asked before it, and ``unanswered`` the others of these.
    """


class Unreachable(_Unanswered, ConnectionError):
    """Kafka, or the installation on it, cannot be reached.

    ``unanswered`` are the questions that were under way, whose answers may still come, and be charged; ``results`` are the
    answers that came to others asked with them.
    """


class Forbidden(SottoError, PermissionError):
    """Kafka does not let this principal do it."""


class Missing(SottoError, ImportError):
    """A package is not installed; the message names the extra that brings it."""
