"""Why a request is not served, as an exception and as an answer."""

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
"""Field problems told at once."""


class ProblemError(Exception):
    """Stops a request; the answer is ``problem`` with ``headers``."""

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


def too_many(message: str, seconds: int) -> ProblemError:
    """So much is asked at once that it is refused; whoever asks again after these seconds may have better luck."""
    return ProblemError(429, "too-many-requests", message, headers={"Retry-After": str(seconds)})


def unknown(what: Literal["source", "stream", "population"], name: str) -> ProblemError:
    """The name in a path is not known (yet)."""
    return ProblemError(404, "not-found", f"there is no {what} '{name[:128]}'")


def refuse_repeated(parameters: Collection[str]) -> None:
    """Refuse parameters of which one is given twice."""
    if len(set(parameters)) != len(parameters):
        raise ProblemError(400, "malformed", "parameter: one is given twice; give each once")


def malformed(error: ValidationError, what: Literal["body", "parameter"]) -> ProblemError:
    """Say which fields are wrong and why, without quoting any value."""
    found = error.error_count()
    if found > MAX_FAULTS:
        return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; compare it with /openapi.json")
    fields = [_field(detail) for detail in error.errors(include_input=False, include_url=False)[:MAX_FIELDS]]
    return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; see 'fields'", fields=fields)


def _field(detail: Any) -> FieldProblem:
    steps = [*map(str, detail["loc"]), *(["kind"] if detail["type"] == KIND_ERROR else [])]
    place = ".".join(steps) or "body"
    message = "unknown field; remove it" if detail["type"] == "extra_forbidden" else detail["msg"]
    return FieldProblem(field=place[:80], message=message[:200])


class GoneError(ConnectionError):
    """Whoever asked had gone before their turn came, or before all that they sent was there."""


class _Waiter(NamedTuple):
    gone: Callable[[], bool]
    turn: asyncio.Future[None]


class RequestTurns:
    """Whose turn it is. At most ``most`` wait, ``each`` of one name; after a turn nobody has one for ``rest`` times its length."""

    def __init__(
        self,
        *,
        most: float = math.inf,
        each: float = math.inf,
        rest: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._each = each
        self._rest = rest
        self._clock = clock
        self._taken = False
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, name: str, gone: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn and have it; GoneError if one is ``gone`` by then, ProblemError where too many wait."""
        await self._wait(name, gone)
        began = self._clock()
        try:
            yield
        finally:
            pause = (self._clock() - began) * self._rest
            if pause > 0.0:
                asyncio.get_running_loop().call_later(pause, self._pass_on)
            else:
                self._pass_on()

    async def _wait(self, name: str, gone: Callable[[], bool]) -> None:
        if not self._taken:
            self._taken = True
            return
        if self._is_full(name):
            self._let_go()
        if self._is_full(name):
            raise too_many(
                f"one is worked on at a time; at most {self._each} of a name wait, and {self._most} of all: ask again later",
                10,
            )
        waiter = _Waiter(gone, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(name, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._pass_on()  # the turn had come
            raise

    def _pass_on(self) -> None:
        self._let_go()
        if not self._waiting:
            self._taken = False
            return
        name, own = self._waiting.popitem(last=False)
        own.popleft().turn.set_result(None)
        if own:
            self._waiting[name] = own

    def _let_go(self) -> None:
        """Let go of those that wait no more."""
        for name, own in list(self._waiting.items()):
            for waiter in own:
                if not waiter.turn.done() and waiter.gone():
                    waiter.turn.set_exception(GoneError())
            if left := deque(waiter for waiter in own if not waiter.turn.done()):
                self._waiting[name] = left
            else:
                del self._waiting[name]

    def _is_full(self, name: str) -> bool:
        own = len(self._waiting.get(name, ()))
        return own >= self._each or sum(map(len, self._waiting.values())) >= self._most
