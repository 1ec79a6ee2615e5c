"""Alerts: what a committed answer says to whoever watches, and the words that it is told in.

An answer of outcome ``above`` is an alert; only streams of above_threshold and numeric_sparse give one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from schemas import Answer, registered_as
from schemas.windows import moment_ms
from stream.figures import bound, estimate

ABOVE: Final = b'"above"'
"""What the bytes of every alert hold."""

BELOW: Final = b'"below"'
"""What the bytes of every answer that ends one hold."""


class Place(NamedTuple):
    """A stream and one of its groups: what fires, or does not. A stream without groups has one place."""

    stream: str
    group: tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """What a watched stream has said: an answer, or that it has ``ended`` and for which reason.

    ``counted`` says how many rows or events of one person count, where the source bounds them.
    ``time`` is Kafka's stamp of the answer, or of what first told of the end in the ledger or by an answer, in seconds since the epoch.
    """

    time: float
    stream: str
    source: str | None = None
    answer: Answer | None = None
    ended: str | None = None
    counted: str = ""

    @property
    def is_alert(self) -> bool:
        """Whether it is an alert."""
        return self.answer is not None and self.answer.outcome == "above"


def place_of(answer: Answer) -> Place:
    """What an answer is about."""
    return Place(answer.stream, tuple((answer.group or {}).items()))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is one of these, in which ``*`` stands for anything; no patterns let everything through.

    What stands for another in a period goes by that name too: a stream is followed from period to period.
    """
    names = {name, registered_as(name)}
    return not patterns or any(fnmatchcase(one, pattern) for pattern in patterns for one in names)


def group_text(group: Place | dict[str, str | int] | None) -> str:
    """A group in words: ``origin=EWR, carrier=UA``."""
    pairs = group.group if isinstance(group, Place) else (group or {}).items()
    return ", ".join(f"{name}={value}" for name, value in pairs)


def estimate_text(answer: Answer) -> str:
    """The number that an alert came with and its ±, or nothing."""
    if answer.estimate is None:
        return ""
    told = estimate(answer.estimate, answer.alpha)
    return told if answer.alpha is None else f"{told} ± {bound(answer.alpha)}"


def window_text(answer: Answer) -> str:
    """The window that an answer is about, in UTC and with no digit that both ends share: ``2013-01-01 05:00–06:00``."""
    if answer.window is None:
        return ""
    start, end = answer.window.start, answer.window.end
    try:
        first, last = _moment(moment_ms(start)), _moment(moment_ms(end))
    except ValueError:  # another writer's words
        return f"{start}–{end}"
    day, time = last.split(" ")
    return f"{first}–{time if first.startswith(day) else last}"


def window_end(answer: Answer, stamp: float) -> float:
    """When an answer's window ended, in seconds since the epoch; never after Kafka's stamp of the answer."""
    if answer.window is None:
        return stamp
    try:
        return min(moment_ms(answer.window.end) / 1000, stamp)
    except ValueError:
        return stamp


def window_seconds(answer: Answer) -> float:
    """How long an answer's window is; 0 without one."""
    if answer.window is None:
        return 0.0
    try:
        return max(moment_ms(answer.window.end) - moment_ms(answer.window.start), 0) / 1000
    except ValueError:
        return 0.0


def written_time(seconds: float, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """A time in ISO 8601 and UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if milliseconds % 1000:
        return moment.isoformat(" ", "milliseconds").removesuffix("+00:00")
    return f"{moment:%Y-%m-%d %H:%M}" if not moment.second else f"{moment:%Y-%m-%d %H:%M:%S}"
