"""Charges: what workers report of each stream's spending. Every figure is a running total, never an increment."""

from __future__ import annotations

from typing import ClassVar, Literal

from schemas.base import Amount, Count, Identifier, Incarnation, Reason, SparingEvent, Surplus

StreamState = Literal["open", "exhausted", "halted", "closed"]


class Charge(SparingEvent):
    """A stream's totals so far; any ``state`` but ``open`` is final: no answer follows it."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"surplus"})

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    spent: Amount
    reason: Reason | None = None
    surplus: Surplus = 0
