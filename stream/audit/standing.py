"""The cases of standing streams: people's events on a live topic, from their bytes to the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from stream.audit.cases import Case, Sent, Side, Transcript

_TOPIC: Final = {
    "kind": "events",
    "neighbors": "add-remove",
    "topic": "audit",
    "person": "who",
    "time": "at",
    "clock": "marks",
    "contribution": 2,
    "attributes": {"group": ["a", "b"], "amount": {"kind": "integers", "minimum": 0, "maximum": 1}},
}
_PLAN: Final = {"epsilon": 2.0, "expected_queries": 8, "beta": 0.1}
_HOURLY: Final = {"window": {"size": "1h"}, "begins": "2026-01-01T00:00:00Z"}
_ENDS: Final = ("00:20", "00:40", "01:00", "02:00")


_PERIODS: Final = {**_TOPIC, "contribution": 1, "total": 1, "unit": "person-period", "period": "1h", "ahead": "1h"}
_QUARTERS: Final = {"window": {"size": "15m"}, "begins": "2026-01-01T00:00:00Z"}


def _event(who: str, at: str, group: str = "a", amount: int = 0) -> Mapping[str, Any]:
    return {"who": who, "at": f"2026-01-01T{at}:00Z", "group": group, "amount": amount}


def _sides(
    others: Sequence[Sequence[Mapping[str, Any]]], own: Sequence[Sequence[Mapping[str, Any]]]
) -> tuple[Side, Side]:
    """Without a person and with: what comes until each of the ends, that person's events first."""

    def side(*, present: bool) -> Side:
        parts = zip(others, own, _ENDS, strict=False)
        sent = [([*(mine if present else ()), *theirs], end) for theirs, mine, end in parts]
        return Side(sent=[Sent(events, f"2026-01-01T{end}:00Z") for events, end in sent])

    return side(present=False), side(present=True)


def _often(who: str, *ats: str, **fields: Any) -> list[Mapping[str, Any]]:
    return [_event(who, at, **fields) for at in ats]


_MANY: Final = [_event(f"other {number}", "00:41", group="b") for number in range(8)]

LAPLACE: Final = (
    # Whatever a person does, and in however many batches, two events count.
    Case(
        "one person with 9 events more",
        {"kind": "laplace"},
        _TOPIC,
        _sides([[_event("ann", "00:01")], [], []], [_often("me", "00:02", "00:03", "00:04")] * 3),
        {**_PLAN, "standing": _HOURLY},
        resolution=1.0,
    ),
    # An event that is dated behind the window's end closes it for nobody.
    Case(
        "one person ahead of the others more",
        {"kind": "laplace"},
        _TOPIC,
        _sides([[], [], _MANY], [_often("me", "00:02", "00:03"), [], _often("me", "01:02")]),
        {**_PLAN, "standing": _HOURLY},
        resolution=1.0,
    ),
    Case(
        "one person in an empty window more",
        {"kind": "laplace", "answers": 2},
        _TOPIC,
        _sides([[], [], [], [_event("ann", "01:01")]], [_often("me", "00:02", "00:03"), [], [], []]),
        {**_PLAN, "standing": _HOURLY},
        resolution=2.0,
    ),
)

HISTOGRAM: Final = (
    Case(
        "one person in both groups of a window more",
        {"kind": "histogram", "attributes": ["group"]},
        _TOPIC,
        _sides([_MANY, [], []], [[_event("me", "00:02"), *_often("me", "00:03", "00:04", group="b")], [], []]),
        {**_PLAN, "standing": {**_HOURLY, "by": ["group"]}},
        resolution=1.0,
    ),
)


def _all_grown(transcript: Transcript) -> bool:
    """Whether the number so far grew in each window of the first hour."""
    numbers = [0, *(seen.numbers[0] for seen in transcript[:4])]
    return all(later > former for former, later in pairwise(numbers))


RUNNING: Final = (
    # All windows of two hours are told; of the person's one hour, with events in each of its windows, one event counts.
    Case(
        "one person's hour of 6 events more",
        {"kind": "running_count", "steps": 4},
        _PERIODS,
        _sides(
            [[], [], [], [_event("ann", "01:05")]],
            [_often("me", "00:02", "00:16"), _often("me", "00:17", "00:31", "00:32"), _often("me", "00:46"), []],
        ),
        {"epsilon": 2.0, "beta": 0.1, "standing": _QUARTERS},
        event=_all_grown,
    ),
)
