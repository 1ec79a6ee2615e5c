"""What a simulation has found."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import Amount, GrantRecord, Source
from stream.accounting.costs import whole_left
from stream.accounting.counted import rows_counted
from stream.accounting.promises import promises
from stream.simulation.measuring import Figures, Measurement, figures


@dataclass(frozen=True, slots=True)
class Ending:
    """The line of the first question that a stream did not answer any more, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the stream over all questions, with a noise key of its own; ``charged`` is None where one charge pays for all.

    ``rejections`` are the reasons by the questions' lines.
    """

    number: int
    grant: GrantRecord
    answered: int
    halted: int
    rejections: dict[int, str]
    ended: Ending | None
    measurements: tuple[Measurement, ...]

    @property
    def charged(self) -> int | None:
        """How many ordinary charges were used, of the grant's ``cutoff``."""
        grant, cutoff = self.grant, self.grant.calibration.cutoff
        return cutoff - whole_left(cutoff, grant.tops, grant.surplus) if cutoff else None

    @property
    def spent(self) -> Amount:
        """What the run spent of what was reserved, ``grant.cost``."""
        return self.grant.spent

    @property
    def broken(self) -> int:
        """How many answers were further off than they promised."""
        return len({one.line for one in self.measurements if one.broken})

    @property
    def figures(self) -> tuple[Figures, ...]:
        """The errors of this run's answers."""
        return figures(self.measurements)


@dataclass(frozen=True, slots=True)
class Report:
    """All runs, of a stream on the ``source``; ``rows`` is the number of rows of the public table and ``counted`` that of those which count, None for a feed.

    The ``seed`` repeats them.
    """

    source: Source
    questions: int
    rows: int | None
    counted: int | None
    seed: int
    runs: tuple[Run, ...]

    @property
    def grant(self) -> GrantRecord:
        """The stream's grant; that of all runs has the same spec, calibration and cost."""
        return self.runs[0].grant

    @property
    def promises(self) -> tuple[str, ...]:
        """What the stream promises, in words."""
        return tuple(
            map(str, promises(self.grant.spec, self.grant.calibration, counted=rows_counted(self.source)))
        )

    @property
    def figures(self) -> tuple[Figures, ...]:
        """The errors of all runs' answers."""
        return figures(one for run in self.runs for one in run.measurements)

    @property
    def broken_runs(self) -> int:
        """How many runs had an answer further off than it promised; that is what β bounds the share of."""
        return sum(run.broken > 0 for run in self.runs)
