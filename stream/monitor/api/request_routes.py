"""Requests to the budget service, in the name of whoever asks.

Every request carries the name of the token that asked, whatever it says itself. An analyst opens and extends in their own name, whatever the request says, and only where a part of the budget is allotted: the
ledger decides who has one and how much is left of it. They close what they have opened. An operator asks for anything, and
may name the analyst that a stream is for.
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
    """The receipt of a request; ProblemError where it is refused, not theirs to ask, or not known yet."""
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
    """The request as it is sent for somebody, whose name it carries into the trail."""
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
    """Refuse where nobody has an allotment: the ledger would let any analyst have the whole budget.

    Allotments are never taken away altogether, so what the tables know of is still there.
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
