"""Chooses the largest groups of an answer from its published numbers, at no privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from schemas import Domain, TableSource
from stream.formatting import MAX_NAMES_LENGTH, longest_name, values_of
from stream.processing.dead_letters import Rejection
from stream.worker.families.family import Reply


@dataclass(frozen=True, slots=True)
class TopGroups:
    """How many groups are published, and the attributes by which they are grouped."""

    count: int
    attributes: tuple[tuple[str, Domain], ...]


def parse_top(source: TableSource, query: Any) -> TopGroups | None:
    """Return a grouped query's ``top``; None without one, or if it groups by undeclared attributes."""
    if query.top is None or not set(query.group_by) <= source.attributes.keys():
        return None
    top = TopGroups(query.top, tuple((name, source.attributes[name]) for name in query.group_by))
    count = min(top.count, math.prod(domain.size for _, domain in top.attributes))
    longest = longest_name(source.attributes, query.group_by)
    if count * longest > MAX_NAMES_LENGTH:
        raise Rejection(
            "malformed",
            f"top: the names of {count} groups have up to {count * longest:,} characters; ask for at most "
            f"{MAX_NAMES_LENGTH // longest}",
        )
    return top


def keep_largest_groups(reply: Reply, top: TopGroups) -> Reply:
    """Keep the largest of a reply's numbers, with the names of their groups; equals in row-major order.

    The error bound holds for all numbers at once, so also for the chosen ones. A confidence interval
    holds for one number fixed in advance, so chosen numbers have none.
    """
    numbers = reply.estimates or ()
    indices = sorted(range(len(numbers)), key=lambda index: (-numbers[index], index))[: top.count]
    values = [(name, values_of(domain)) for name, domain in top.attributes]
    groups = []
    for index in indices:
        group: dict[str, str | int | float] = {}
        for name, choices in reversed(values):
            index, code = divmod(index, len(choices))  # noqa: PLW2901
            group[name] = choices[code]
        groups.append({name: group[name] for name, _ in values})
    chosen = tuple(numbers[index] for index in indices)
    return replace(reply, estimates=chosen, top_groups=tuple(groups), intervals=None, typical_error=None)
