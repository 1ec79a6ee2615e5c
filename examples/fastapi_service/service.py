"""A web service that asks: ``uvicorn service:app``, then ``GET /counts/seniors?where=age >= 65``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sotto import AsyncClient, Halted, Rejected, Settings, SottoError, Timeout, Unreachable

STATUSES: dict[type[SottoError], int] = {Rejected: 422, Halted: 410, Timeout: 504, Unreachable: 503}
"""What each error is over HTTP; any other is 500."""


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


async def count(stream: str, where: str, client: Annotated[AsyncClient, Depends(client_of)]) -> Count:
    """How many rows satisfy a predicate."""
    result = await client.ask(stream, where=where, timeout=20)
    assert result.estimate is not None, "only streams that answer with a number are asked"
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
            app.state.client = client
            yield

    app = FastAPI(title="Private counts", lifespan=connected)
    app.add_exception_handler(SottoError, failed)
    app.get("/counts/{stream}")(count)
    return app


app = make_app()
