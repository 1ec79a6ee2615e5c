"""The life of a stream: which state may follow which.

A worker changes the state with its answers, the ledger records what workers report, and the budget
service grants extensions. All of them ask this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas import StreamState

TRANSITIONS: Final[Mapping[StreamState, frozenset[StreamState]]] = {
    # Extended; the last charged answer or no ε left; halted by a request, or as its log went back.
    "open": frozenset({"open", "exhausted", "halted", "closed"}),
    # Extended, or closed by a request. A halt only excludes further extensions.
    "exhausted": frozenset({"open", "closed"}),
    "halted": frozenset({"closed"}),
    "closed": frozenset(),
}
"""The states that may follow each state of a stream: closed is final."""


def may_become(state: StreamState, following: StreamState) -> bool:
    """Return True if a stream in ``state`` may become ``following``."""
    return following in TRANSITIONS[state]
