"""Charges: what workers report of each stream's spending. Every figure is a running total, never an increment."""

from __future__ import annotations

from typing import Literal

from schemas.base import Amount, Count, Event, Identifier, Incarnation, Reason, Surplus

StreamState = Literal["open", "exhausted", "halted", "closed"]


class Charge(Event):
    """A stream's totals so far; any ``state`` but ``open`` is final: no answer follows it."""

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    spent: Amount
    reason: Reason | None = None
    surplus: Surplus = 0
