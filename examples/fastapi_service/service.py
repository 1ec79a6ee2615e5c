"""A web service that asks: ``uvicorn service:app``, then ``GET /counts/seniors?where=age >= 65``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sotto import AsyncClient, Halted, Invalid, Rejected, Settings, SottoError, Timeout, Unknown, Unreachable

STATUSES: dict[type[SottoError], int] = {
    Invalid: 422,
    Rejected: 422,
    Unknown: 404,
    Halted: 410,
    Timeout: 504,
    Unreachable: 503,
}
"""What each error is over HTTP; any other is 500."""

NUMBERS = frozenset({"laplace", "pmw"})
"""The mechanisms that answer every count with a number."""


class Count(BaseModel):
    """A private count: within ± ``plus_minus`` of the truth, with the probability that the stream promises."""

    estimate: float
    plus_minus: float | None
    epsilon_spent: float
    """The privacy loss of the whole stream so far."""


def client_of(request: Request) -> AsyncClient:
    """The one client of this process: it is made for many questions at once."""
    client: AsyncClient = request.app.state.client
    return client


def mechanisms_of(request: Request) -> dict[str, str]:
    """The mechanism of each stream that was asked of; a stream's name stands for one for ever."""
    mechanisms: dict[str, str] = request.app.state.mechanisms
    return mechanisms


async def count(
    stream: str,
    where: str,
    client: Annotated[AsyncClient, Depends(client_of)],
    mechanisms: Annotated[dict[str, str], Depends(mechanisms_of)],
) -> Count:
    """How many rows satisfy a predicate."""
    if stream not in mechanisms:
        mechanisms |= {one.spec.stream: one.spec.mechanism.kind for one in await client.list_streams()}
    if (kind := mechanisms.get(stream)) is None:
        raise Unknown(f"stream: '{stream}' was never opened; 'sotto stream list' shows those that are")
    if kind not in NUMBERS:
        raise Invalid(
            f"stream: '{stream}' is one of {kind}, which does not answer every count with a number; name one of laplace or pmw"
        )
    result = await client.ask(stream, where=where, timeout=20)
    assert result.estimate is not None
    assert result.spent is not None
    return Count(estimate=result.estimate, plus_minus=result.alpha, epsilon_spent=result.spent.epsilon)


async def failed(_request: Request, error: Exception) -> JSONResponse:
    """An error of Sotto's in its own words: they hold nothing private."""
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
    return JSONResponse({"detail": str(error)}, status)


def make_app(settings: Settings | None = None) -> FastAPI:
    """The service; settings are those of the environment (``SOTTO_BOOTSTRAP`` …) unless given."""

    @asynccontextmanager
    async def connected(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncClient(settings) as client:
            app.state.client, app.state.mechanisms = client, {}
            yield

    app = FastAPI(title="Private counts", lifespan=connected)
    app.add_exception_handler(SottoError, failed)
    app.get("/counts/{stream}")(count)
    return app


app = make_app()
