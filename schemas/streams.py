"""Streams: one mechanism's run over one source, and the calibration that the budget service fixed for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Delta, Digest, Epsilon, Event, Identifier, Incarnation, KeyId, Number, Probability


class AboveThreshold(Event):
    """Answer ⊤ or ⊥ to each query against ``threshold`` until ``cutoff`` ⊤s are out.

    ``monotone`` promises that between neighbouring data sets all query values move in the same direction (true of
    counts under add-remove); the noise is then about half.
    """

    kind: Literal["above_threshold"]
    threshold: Number
    cutoff: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    monotone: bool = False


Mechanism = Annotated[AboveThreshold, Field()]
"""What a stream runs, told apart by ``kind``."""


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


Method = Literal["textbook", "two_sided", "two_sided_shifted", "one_sided", "one_sided_rounds"]
"""How noise is laid out; see the proof note of AboveThreshold."""


class Calibration(Event):
    """The public constants of one stream's noise, fixed at opening from public parameters only.

    With ``fresh_threshold`` the threshold noise is drawn anew after every ⊤ and ``epsilon_threshold`` and
    ``epsilon_query`` are those of one round of cutoff 1; without, they are those of the whole stream, whose
    query noise is wider by the cutoff. ``sensitivity_steps``, ``shift`` and noise are in steps of ``grid``; ``alpha``
    and ``grid`` are in the query's own unit.
    """

    method: Method
    noise: Literal["one_sided", "two_sided"]
    fresh_threshold: bool
    epsilon_threshold: float
    epsilon_query: float
    shift: int
    sensitivity_steps: Annotated[int, Field(ge=1)]
    grid: float
    cutoff: Annotated[int, Field(ge=1)]
    monotone: bool
    epsilon: float
    delta: float
    expected_queries: Count
    beta: float
    alpha: float


class StreamIdentity(Event):
    """What makes one opening of a stream unlike any other; minted by the budget service, never changed.

    ``digest`` is that of the whole definition as it was at the opening (spec, calibration, source, fingerprint): all
    noise is bound to it. ``key_id`` names the noise key that the stream's noise is derived from.
    """

    incarnation: Incarnation
    digest: Digest
    key_id: KeyId
