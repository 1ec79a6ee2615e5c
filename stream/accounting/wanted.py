"""What plans are compared for: so many questions of one form, about such a source, at an ε or within an α."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from schemas import MAX_CATEGORIES
from schemas.queries import Form as QuestionForm
from stream.accounting.methods import PlanError
from stream.accounting.setting import Setting

Form = QuestionForm | Literal["alarm", "running"]
"""The forms of a question, ``alarm``: whether a value or a count is above a threshold, and ``running``: the number so far."""

FORMS: Final[tuple[Form, ...]] = (*get_args(QuestionForm), "alarm", "running")


@dataclass(frozen=True, slots=True)
class Summed:
    """An attribute of integers that is summed: the distance from its least value to its greatest, and how far one row moves its sum.

    ``centred`` is how far it moves the sum of what the values are above the middle of their range.
    """

    range: int
    moves: int
    centred: int


UNKNOWN_RANGE: Final = Summed(range=1, moves=1, centred=1)
"""For an attribute of which nothing is known: errors in ranges of it, or of its sum in what one row moves that by."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``queries`` questions of one form, or windows of one stream, at ``epsilon`` or within ``alpha``; one of the two at least.

    ``fields`` are those of mechanisms that are given beside, each for the mechanisms that have it. ``group_by`` has the places among the
    setting's sizes of the attributes that groups are of; none for any group-by that can be asked. ``summed`` are the attributes that sums and
    means are of; none where their ranges are not known.
    """

    form: Form
    queries: int
    epsilon: float | None
    alpha: float | None
    beta: float
    delta: float
    setting: Setting
    fields: Mapping[str, Any]
    cutoff: int = 1
    group_by: tuple[int, ...] = ()
    summed: tuple[Summed, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether errors are told as shares of the rows, whose number is public and known."""
        return self.form == "fraction" and self.setting.rows_public and self.setting.rows is not None

    def of_its_groups(self) -> Wanted | None:
        """The same of a stream over the attributes that are grouped by alone; None where it has no others, or any may be grouped by."""
        if self.form != "groups" or not 0 < len(self.group_by) < len(self.setting.sizes):
            return None
        sizes = tuple(self.setting.sizes[place] for place in self.group_by)
        setting = replace(self.setting, sizes=sizes, universe=math.prod(sizes))
        return replace(self, setting=setting, group_by=tuple(range(len(sizes))))

    def require_alpha(self) -> None:
        """PlanError where an error is wanted that follows from no public fact, or nothing is."""
        if self.epsilon is None and self.alpha is None:
            raise PlanError("epsilon: give it, or alpha, the error that is wanted")
        if self.alpha is None:
            return
        if self.form == "mean":
            raise PlanError(
                "--alpha: a mean's error depends on how many rows it is over; plan the sums and the counts, each with an alpha of its own"
            )
        if self.form == "fraction" and not self.setting.rows_public:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows, which is private here; plan the counts with an alpha in rows"
            )
        if self.form == "fraction" and self.setting.rows is None:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows; give --rows, or plan the counts with an alpha in rows"
            )
        if self.form == "sum" and not self.summed:
            raise PlanError(
                "--alpha: a sum's error depends on the range of its attribute; give --source, which declares it"
            )


@dataclass(frozen=True, slots=True)
class Groups:
    """``most`` groups that an answer lists, and the most ``cells`` of the table that one of them adds up."""

    most: int
    cells: int


def groups_of(wanted: Wanted) -> Groups:
    """The groups that are meant: of all group-bys the finest has the most groups, and the coarsest the most cells in each."""
    sizes = wanted.setting.sizes
    if not sizes:
        raise PlanError("--sizes: the groups are not known without; give it, or --source")
    universe = math.prod(sizes)
    fewest = math.prod(sizes[place] for place in wanted.group_by) if wanted.group_by else min(sizes)
    if fewest > MAX_CATEGORIES:
        found = (
            f"there are {fewest:,} groups" if wanted.group_by else f"each attribute has {fewest:,} groups or more"
        )
        raise PlanError(
            f"--group-by: {found}, and an answer lists {MAX_CATEGORIES:,} at most; group by fewer or smaller attributes"
        )
    return Groups(fewest if wanted.group_by else min(universe, MAX_CATEGORIES), universe // fewest)
