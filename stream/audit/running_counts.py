"""The cases of running counts: what windows ask with, on either of two neighbouring topics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from stream.audit.cases import Case, Side, Transcript

_TOPIC: Final = {
    "kind": "events",
    "neighbors": "add-remove",
    "topic": "audit",
    "person": "who",
    "time": "at",
    "total": 1,
}
_HOURLY: Final = {"window": {"size": "1h"}, "begins": "2026-01-01T00:00:00Z"}
_COUNTING: Final = {"epsilon": 2.0, "beta": 0.1, "standing": _HOURLY}


def _running(*sums: tuple[Sequence[float], Sequence[float]]) -> tuple[Side, Side]:
    """Two sides from the exact sums that each window asks with on either."""

    def asked(side: int) -> Side:
        hours = [f"2026-01-01T0{hour}:00:00Z" for hour in range(len(sums) + 1)]
        windows = [{"start": start, "end": end} for start, end in pairwise(hours)]
        return Side([{"values": pair[side], "window": window} for pair, window in zip(sums, windows, strict=True)])

    return asked(0), asked(1)


def _all_raised(transcript: Transcript) -> bool:
    return all(seen.numbers[0] >= 1 for seen in transcript)


def _two_raised(transcript: Transcript) -> bool:
    return all(seen.numbers[0] >= 1 for seen in transcript[:2])


RUNNING: Final = (
    # Each window has noise of its own, and the first one's is in all answers.
    Case(
        "one event more",
        {"kind": "running_count", "steps": 3},
        _TOPIC,
        _running(([0.0], [1.0]), ([0.0, 0.0], [1.0, 0.0]), ([0.0] * 3, [1.0, 0.0, 0.0])),
        _COUNTING,
        event=_all_raised,
    ),
    # The first window is in a node of either level: both answers raised lose exactly ε.
    Case(
        "one event more; two levels",
        {"kind": "running_count", "steps": 3},
        _TOPIC,
        _running(([0.0], [1.0]), ([0.0], [1.0]), ([0.0, 0.0], [1.0, 0.0])),
        {**_COUNTING, "calibration": "textbook"},
        event=_two_raised,
    ),
    Case(
        "another's event in place of one",
        {"kind": "running_count", "steps": 2},
        {**_TOPIC, "neighbors": "replace"},
        _running(([0.0], [1.0]), ([0.0, 1.0], [1.0, 0.0])),
        _COUNTING,
    ),
)
