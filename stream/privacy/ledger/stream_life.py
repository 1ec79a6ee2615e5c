"""The life of a stream: which state may follow which.

Workers change the state with their answers, the ledger records what they report, and the budget
service grants extensions. All of them use this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas import StreamState

TRANSITIONS: Final[Mapping[StreamState, frozenset[StreamState]]] = {
    # Extended; grant used up; halted by a request or because offsets were repeated; closed.
    "open": frozenset({"open", "exhausted", "halted", "closed"}),
    # Open again by an extension, or closed by a request. A halt only prevents extensions.
    "exhausted": frozenset({"open", "closed"}),
    "halted": frozenset({"closed"}),
    "closed": frozenset(),
}
"""The states that may follow each state of a stream: closed is final."""


def may_become(state: StreamState, following: StreamState) -> bool:
    """Return True if a stream in ``state`` may become ``following``."""
    return following in TRANSITIONS[state]
