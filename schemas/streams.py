"""Streams: one mechanism's run over one source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Delta, Digest, Epsilon, Event, Identifier, Incarnation, KeyId, Probability
from schemas.mechanisms import MAX_ANSWERS, Mechanism


class StreamSpec(Event):
    """What an operator asks for: a mechanism on a source, at a privacy cost, for so many queries."""

    stream: Identifier
    source: Identifier
    mechanism: Mechanism
    epsilon: Epsilon
    delta: Delta = 0.0
    expected_queries: Annotated[int, Field(ge=1, le=10**12)] = 1000
    beta: Probability = 0.05
    calibration: Literal["best", "textbook"] = "best"


class StreamIdentity(Event):
    """What makes one opening of a stream unlike any other; minted by the budget service, never changed.

    ``digest`` is that of the whole definition as it was at the opening (spec, calibration, source, fingerprint): all
    noise is bound to it. ``key_id`` names the noise key that the stream's noise is derived from.
    """

    incarnation: Incarnation
    digest: Digest
    key_id: KeyId


class Extension(Event):
    """Further charged answers of a stream that is open, each at the price of those that it was opened with.

    They are ``answers`` in number and take no more than ``epsilon`` by adding up or, where they do, are together
    (``epsilon``, ``delta``)-DP by optimal composition. ``request`` is the digest of the request that asked for them: the same
    one never extends a stream twice.
    """

    request: Digest
    answers: Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
    epsilon: float
    delta: float = 0.0


Extensions = tuple[Extension, ...]
"""All extensions of a stream in the order in which they were granted: it only ever grows at its end."""
