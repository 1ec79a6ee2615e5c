"""Errors of clients and driver; all derive from ``SottoError``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # importing schemas at run time would be slow
    from collections.abc import Sequence

    from schemas import Amount, Answer, Calibration, Query


def describe_end_remedy(stream: str, reason: str | None, calibration: Calibration | None = None) -> str:
    """Return how a user gets further answers after a stream's end for this reason; empty for other reasons.

    A published reason has no remedy. Clients add this one; they may not know the stream's calibration.
    """
    from schemas.windows import registered_name  # noqa: PLC0415  (schemas is slow to import)

    reason = (reason or "").removeprefix("closed: ").removeprefix("halted: ")
    if reason.startswith("closed by the refresh to version"):
        return "open another stream for the new version with 'sotto stream open'"
    if not reason.startswith("exhausted:"):
        return ""
    if registered_name(stream) != stream:
        return "it cannot be extended; the next period has its own stream"
    is_fixed = calibration is not None and "gaussian" in {calibration.method, getattr(calibration, "noise", "")}
    is_fixed |= getattr(calibration, "kind", "") == "unknown_groups"
    if is_fixed or reason.startswith("exhausted: the count"):
        return "it cannot be extended; open another stream with 'sotto stream open'"
    return f"extend it with 'sotto stream extend {stream} --epsilon E', or open another stream if it cannot be extended"


def describe_reason(answer: Answer) -> str:
    """Return the reason of an answer without a number, with the remedy if its stream has ended."""
    remedy = describe_end_remedy(answer.stream, answer.reason, getattr(answer, "_calibration", None))
    reason = answer.reason or ""
    # The published reason of a dry run advises as if the limit had been meant.
    if reason.startswith("price: max_price:") and (limit := _NO_PRICE.search(reason)) is not None:
        reason = f"{reason[: limit.end()]}, as in a dry run; nothing was charged; for an answer, raise max_price"
    return "; ".join(filter(None, (reason, remedy)))


_NO_PRICE: Final = re.compile(r", and the limit is 0%?(?=;)")


class SottoError(Exception):
    """Base class of all errors of clients and driver; each message has a remedy.

    Examples:
        >>> try:
        ...     result = client.ask("counts", where="age >= 65")
        ... except SottoError as error:
        ...     print(error)
    """


class Refused(SottoError):
    """The budget service refused a request; nothing has changed.

    If the budget is the reason, ``asked`` is the requested amount and ``left`` the rest of the budget,
    both with ε and δ; otherwise both are None.

    Examples:
        >>> stream = {"stream": "more", "source": "people", "epsilon": 3.0}
        >>> try:
        ...     client.open({**stream, "mechanism": {"kind": "laplace", "answers": 1}})
        ... except Refused as error:
        ...     print(error.asked.epsilon, error.left.epsilon)
        3.0 2.0
    """

    def __init__(self, reason: str, asked: Amount | None = None, left: Amount | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.asked = asked
        self.left = left


class NotAnswered(SottoError):
    """A question was rejected or halted; ``answer`` is the published answer with its ``reason``.

    If other questions of the same call were answered, the message names their number, because they are charged.

    Examples:
        >>> try:
        ...     client.ask("counts", where="height > 2")
        ... except NotAnswered as error:
        ...     print(error.answer.outcome)
        rejected
    """

    def __init__(self, answer: Answer, answered: int = 0, questions: int = 1) -> None:
        verb = "rejected the question" if answer.outcome == "rejected" else f"answered '{answer.outcome}'"
        others = (
            f"; {answered:,} of {questions:,} questions were answered, and their charges stay" if answered else ""
        )
        super().__init__(f"stream '{answer.stream}' {verb}: {describe_reason(answer)}{others}")
        self.answer = answer
        self.reason = answer.reason


class Rejected(NotAnswered):
    """The question is invalid, or its stream is not open; nothing is charged.

    Examples:
        >>> try:
        ...     client.ask("nobody", value=1.0)
        ... except Rejected as error:
        ...     print(error.answer.stream)
        nobody
    """


class Halted(NotAnswered):
    """The stream is halted or closed, or its worker cannot answer; ``reason`` has the cause.

    Examples:
        >>> receipt = client.halt("people", "counts", reason="wrong table")
        >>> try:
        ...     client.ask("counts", where="age >= 65")
        ... except Halted as error:
        ...     print(error.reason)
        wrong table
    """


class Exhausted(Halted):
    """The stream's cutoff or grant is used up; extend or close it.

    Examples:
        >>> questions = [{"stream": "counts", "where": f"age < {n}"} for n in range(1, 6)]
        >>> results = client.ask_many(questions)
        >>> try:
        ...     client.ask("counts", where="age >= 65")
        ... except Exhausted:
        ...     receipt = client.extend("people", "counts", epsilon=0.8)
    """


class _PartialResultsError(SottoError):
    def __init__(self, message: str, unanswered: Sequence[Query] = (), results: Sequence[Answer] = ()) -> None:
        super().__init__(message)
        self.unanswered = tuple(unanswered)
        self.results = results


class Timeout(_PartialResultsError, TimeoutError):
    """No answer or receipt arrived in time; an answer may still arrive and be charged.

    ``unanswered`` has the questions without an answer, ``results`` the answers to the other questions.

    Examples:
        >>> try:
        ...     result = client.ask("counts", where="age >= 65", timeout=5)
        ... except Timeout as error:
        ...     print(error.unanswered)
    """


class Unknown(SottoError, LookupError):
    """The source, stream or other name does not exist.

    Examples:
        >>> try:
        ...     client.budget("peopel")
        ... except Unknown as error:
        ...     print(error)
        source 'peopel' is not registered; did you mean 'people'?
    """


class Invalid(_PartialResultsError, ValueError):
    """An argument does not fit the contract; the message names the field.

    If one of many questions is invalid, ``results`` has the answers to the questions before it, and
    ``unanswered`` the questions before it that have no answer.

    Examples:
        >>> try:
        ...     client.ask("counts", where=65)
        ... except Invalid as error:
        ...     print(str(error).partition(":")[0])
        where
    """


class Unreachable(_PartialResultsError, ConnectionError):
    """Kafka cannot be reached, or has no topics of this installation.

    ``unanswered`` has the pending questions, whose answers may still arrive and be charged;
    ``results`` has the answers to the other questions.

    Examples:
        >>> try:
        ...     client.connect()
        ... except Unreachable as error:
        ...     print(error)
    """


class Forbidden(SottoError, PermissionError):
    """Kafka's access control denies the call to this principal.

    Examples:
        >>> try:
        ...     letters = list(client.dead_letters())
        ... except Forbidden as error:
        ...     print(error)
    """


class Missing(SottoError, ImportError):
    """An optional package is missing; the message has the ``pip install`` command.

    Examples:
        >>> try:
        ...     frame = client.ask("counts", where="age >= 65").to_pandas()
        ... except Missing as error:
        ...     print(error)
    """
