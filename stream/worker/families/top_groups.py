"""The largest groups of a group-by, chosen from published numbers: post-processing, at no charge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas import Domain, TableSource
from stream.formatting import values_of
from stream.processing.dead_letters import Rejection
from stream.worker.families.family import Reply

MAX_NAMES_LENGTH: Final = 1 << 16
"""Most characters of the names of an answer's groups."""


@dataclass(frozen=True, slots=True)
class Top:
    """How many groups are published, and the attributes by which they are grouped."""

    count: int
    attributes: tuple[tuple[str, Domain], ...]


def top_of(source: TableSource, query: Any) -> Top | None:
    """Return the ``top`` of a query by groups; None without one, and for undeclared attributes."""
    if query.top is None or not set(query.group_by) <= source.attributes.keys():
        return None
    top = Top(query.top, tuple((name, source.attributes[name]) for name in query.group_by))
    count = min(top.count, math.prod(domain.size for _, domain in top.attributes))
    longest = sum(len(name) + _longest(domain) for name, domain in top.attributes)
    if count * longest > MAX_NAMES_LENGTH:
        raise Rejection(
            "malformed",
            f"top: the names of {count} groups have up to {count * longest:,} characters; ask for at most "
            f"{MAX_NAMES_LENGTH // longest}",
        )
    return top


def largest_groups(reply: Reply, top: Top) -> Reply:
    """Keep the largest of a reply's numbers, with the names of their groups; the first of equals wins.

    The error bound holds for all numbers together, so also for the chosen ones. A confidence
    interval of one number by itself does not survive a choice by the numbers.
    """
    numbers = reply.estimates or ()
    places = sorted(range(len(numbers)), key=lambda place: (-numbers[place], place))[: top.count]
    values = [(name, values_of(domain)) for name, domain in top.attributes]
    groups = []
    for place in places:
        group: dict[str, str | int | float] = {}
        for name, choices in reversed(values):
            place, code = divmod(place, len(choices))  # noqa: PLW2901
            group[name] = choices[code]
        groups.append({name: group[name] for name, _ in values})
    chosen = tuple(numbers[place] for place in places)
    return replace(reply, estimates=chosen, top_groups=tuple(groups), intervals=None)


def _longest(domain: Domain) -> int:
    return max(len(str(value)) for value in values_of(domain))
