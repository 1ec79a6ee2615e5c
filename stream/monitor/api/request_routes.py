"""Requests to the budget service in the name of the user.

A request records the name of its token. Analysts open and extend streams in their own name and need
an allotment, which the ledger checks; they close only their own streams. Operators may send every
request, and may name the analyst of a stream.
"""

from __future__ import annotations

from aiokafka.errors import KafkaError

from schemas import CloseStream, ExtendStream, OpenStream, Receipt, Request
from schemas.wire import MalformedEventError
from stream.errors import Refused
from stream.log import get_logger
from stream.monitor.api.monitor_state import Monitor
from stream.monitor.api.problems import ProblemError, unknown
from stream.monitor.api.tokens import Bearer
from stream.monitor.state.monitor_tables import Tables
from stream.tracing import span

log = get_logger("monitor")


async def send_request(monitor: Monitor, who: Bearer, request: Request) -> Receipt:
    """Send a request and return its receipt; ProblemError if refused, forbidden or unknown."""
    asked = in_name_of(who, request, monitor.tables)
    try:
        with span("monitor requests", {"sotto.request.kind": asked.kind}):
            receipt = await monitor.requester.request(asked)
    except Refused as error:
        log.info("request refused", kind=asked.kind, by=who.name)
        raise ProblemError(409, "refused", error.reason, asked=error.asked, left=error.left) from None
    except MalformedEventError as error:
        raise ProblemError(400, "malformed", str(error)) from None
    except TimeoutError:
        raise ProblemError(
            504,
            "unavailable",
            "no receipt from the budget service yet; send the same request again with the same id",
        ) from None
    except KafkaError as error:
        raise ProblemError(
            503,
            "unavailable",
            f"Kafka: {type(error).__name__}; send the same request again with the same id",
        ) from None
    log.info("request committed", kind=asked.kind, outcome=receipt.outcome, by=who.name)
    return receipt


def in_name_of(who: Bearer, request: Request, tables: Tables) -> Request:
    """Return the request with the user's name, which the trail records."""
    request = request.model_copy(update={"by": who.name})
    if who.role != "analyst":
        return request
    match request:
        case OpenStream():
            _require_parted(tables, request.stream.source, who)
            return request.model_copy(update={"analyst": who.name})
        case ExtendStream():
            _require_parted(tables, request.source, who)
            return request.model_copy(update={"analyst": who.name})
        case CloseStream():
            entry = tables.streams.get(request.stream)
            if entry is None or entry.grant is None:
                raise unknown("stream", request.stream)
            if entry.grant.analyst != who.name:
                raise ProblemError(403, "forbidden", "the stream is another's; an analyst closes their own")
            return request
        case _:
            raise ProblemError(403, "forbidden", "this is for an operator; the token is an analyst's")


def _require_parted(tables: Tables, source: str, who: Bearer) -> None:
    """Require an allotment: without any, the ledger would let each analyst use the whole budget.

    Allotments are never removed, so those in the tables still exist.
    """
    entry = tables.sources.get(source)
    if entry is None:
        raise unknown("source", source)
    if not tables.shared.are_parted(source, entry.record.population):
        raise ProblemError(
            409,
            "refused",
            f"{who.name} has no allotment on this source, nor on its population; an operator makes one with "
            "'sotto allot', or on the page",
        )
