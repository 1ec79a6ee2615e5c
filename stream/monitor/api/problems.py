"""Exceptions that end a request with a Problem, and limits on concurrent work."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from schemas import Amount
from schemas.base import KIND_ERROR
from schemas.json_limits import MAX_FAULTS
from stream.monitor.api.models import FieldProblem, Problem, ProblemCode

MAX_FIELDS = 10
"""Most invalid fields that one answer lists."""


class ProblemError(Exception):
    """Ends a request with the answer ``problem`` and ``headers``."""

    def __init__(
        self,
        status: int,
        code: ProblemCode,
        message: str,
        *,
        fields: list[FieldProblem] | None = None,
        asked: Amount | None = None,
        left: Amount | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(
            status=status, code=code, message=message, fields=fields or [], asked=asked, left=left
        )
        self.headers = headers or {}


def too_many_error(message: str, seconds: int) -> ProblemError:
    """Return a 429 with the ``seconds`` after which the client may retry."""
    return ProblemError(429, "too-many-requests", message, headers={"Retry-After": str(seconds)})


def unknown_name_error(what: Literal["source", "stream", "population"], name: str) -> ProblemError:
    """Return a 404 for an unknown name in a path."""
    return ProblemError(404, "not-found", f"there is no {what} '{name[:128]}'")


def refuse_repeated(parameters: Collection[str]) -> None:
    """Refuse repeated parameters."""
    if len(set(parameters)) != len(parameters):
        raise ProblemError(400, "malformed", "parameter: a parameter is given twice; give each parameter once")


def malformed_error(error: ValidationError, what: Literal["body", "parameter"]) -> ProblemError:
    """Return a 400 that names the invalid fields without quoting values."""
    found = error.error_count()
    if found > MAX_FAULTS:
        return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; compare it with /openapi.json")
    fields = [_field(detail) for detail in error.errors(include_input=False, include_url=False)[:MAX_FIELDS]]
    wrong = "1 field is wrong" if found == 1 else f"{found} fields are wrong"
    return ProblemError(400, "malformed", f"{what}: {wrong}; see 'fields'", fields=fields)


def _field(detail: Any) -> FieldProblem:
    steps = [*map(str, detail["loc"]), *(["kind"] if detail["type"] == KIND_ERROR else [])]
    place = ".".join(steps) or "body"
    message = (
        "unknown field; remove it"
        if detail["type"] == "extra_forbidden"
        else detail["msg"].removeprefix("Value error, ")
    )
    return FieldProblem(field=place[:80], message=message[:200])


class GoneError(ConnectionError):
    """The client disconnected before its turn came or before its request was complete."""


class _Waiter(NamedTuple):
    is_disconnected: Callable[[], bool]
    turn: asyncio.Future[None]


class RequestTurns:
    """Serializes work; users take turns. At most ``max_waiting`` requests wait in total, and at most
    ``max_waiting_per_user`` of any one user.

    After each turn there is a pause: ``pause_factor`` times the turn's duration.
    """

    def __init__(
        self,
        *,
        max_waiting: float = math.inf,
        max_waiting_per_user: float = math.inf,
        pause_factor: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_per_user = max_waiting_per_user
        self._pause_factor = pause_factor
        self._clock = clock
        self._is_busy = False
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, name: str, is_disconnected: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn; GoneError if the client has disconnected, ProblemError if too many wait."""
        await self._wait(name, is_disconnected)
        began = self._clock()
        try:
            yield
        finally:
            pause = (self._clock() - began) * self._pause_factor
            if pause > 0.0:
                asyncio.get_running_loop().call_later(pause, self._give_next_turn)
            else:
                self._give_next_turn()

    async def _wait(self, name: str, is_disconnected: Callable[[], bool]) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        if self._is_full(name):
            self._remove_disconnected()
        if self._is_full(name):
            raise too_many_error(
                f"too many requests wait (at most {self._max_waiting_per_user} of one name, {self._max_waiting} in total); retry in 10 s",
                10,
            )
        waiter = _Waiter(is_disconnected, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(name, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._give_next_turn()  # the request was cancelled after its turn had come
            raise

    def _give_next_turn(self) -> None:
        self._remove_disconnected()
        if not self._waiting:
            self._is_busy = False
            return
        name, waiters = self._waiting.popitem(last=False)
        waiters.popleft().turn.set_result(None)
        if waiters:
            self._waiting[name] = waiters

    def _remove_disconnected(self) -> None:
        """Remove the waiting requests of disconnected clients; they raise GoneError."""
        for name, waiters in list(self._waiting.items()):
            for waiter in waiters:
                if not waiter.turn.done() and waiter.is_disconnected():
                    waiter.turn.set_exception(GoneError())
            if left := deque(waiter for waiter in waiters if not waiter.turn.done()):
                self._waiting[name] = left
            else:
                del self._waiting[name]

    def _is_full(self, name: str) -> bool:
        waiters = len(self._waiting.get(name, ()))
        return waiters >= self._max_waiting_per_user or sum(map(len, self._waiting.values())) >= self._max_waiting
