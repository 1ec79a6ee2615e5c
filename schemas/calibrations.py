"""Calibrations: the public constants of one stream's noise, fixed at opening from public parameters only.

``sensitivity_steps``, ``shift`` and noise are in steps of ``grid``; ``alpha`` and ``grid`` are in the query's own unit.
Every calibration promises ``alpha`` with probability 1 − ``beta`` for all of ``expected_queries`` answers together; what it bounds
differs by mechanism (docs/mechanisms.md, "What α bounds"). ``cutoff`` is how many charged answers the grant pays for; 0 means that one
charge pays for all. ``rounding`` is how far rounding to the grid moves a value at most; α counts it in. ``vacuous`` says that
a constant answer would keep to α, by the public number of rows.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import ByKind, Count, SparingEvent

Steps = Annotated[int, Field(ge=1)]


class _Calibration(SparingEvent):
    epsilon: float
    delta: float
    grid: float
    sensitivity_steps: Steps
    cutoff: Count
    expected_queries: Count
    beta: float
    alpha: float
    rounding: float = 0.0
    vacuous: bool = False


Method = Literal["textbook", "two_sided", "two_sided_shifted", "one_sided", "one_sided_rounds"]
"""How a sparse vector's noise is laid out; see the proof note of AboveThreshold."""


class SparseVectorCalibration(_Calibration):
    """AboveThreshold and NumericSparse.

    With ``fresh_threshold`` the threshold noise is drawn anew after every ⊤ and ``epsilon_threshold``, ``epsilon_query``
    and ``epsilon_answer`` are those of one round of cutoff 1; without, they are those of the whole stream, whose query
    and answer noise is wider by the cutoff. ``answer_alpha`` bounds the error of the numbers on ⊤s.
    """

    kind: Literal["sparse_vector"] = "sparse_vector"
    method: Method
    noise: Literal["one_sided", "two_sided"]
    fresh_threshold: bool
    epsilon_threshold: float
    epsilon_query: float
    shift: int
    cutoff: Annotated[int, Field(ge=1)]
    monotone: bool
    numbers: Literal["none", "fresh", "gap"] = "none"
    epsilon_answer: float = 0.0
    answer_alpha: float = 0.0


class AnswersCalibration(_Calibration):
    """Mechanisms that charge each answer: laplace, noisy_max, exponential.

    Each of ``cutoff`` answers is ``epsilon_answer``-DP; together they are (``epsilon``, ``delta``)-DP by the ``method``:
    adding up (``basic``) or optimal composition. With ``gaussian`` there is no ``epsilon_answer``: the noise of numbers that one
    person moves by Δ, in the ℓ₂ norm, has the deviation Δ·``deviation``; of one answer these are at most ``moved``. ``alpha`` is that of the stream's sensitivity; a Laplace
    query with another sensitivity has its α in proportion.
    """

    kind: Literal["answers"] = "answers"
    method: Literal["basic", "optimal", "textbook", "gaussian"]
    epsilon_answer: float
    monotone: bool = False
    deviation: float = 0.0
    moved: Steps = 1


class ReleaseCalibration(_Calibration):
    """Mechanisms that are charged once, at the first answer: histogram, lazy_histogram, sparse_project, randomized_response.

    The release consists of ``parts`` that one person all reaches, each ``epsilon_part``-DP: the rows of a projection,
    the events of one person, else one. With ``gaussian`` there is no ``epsilon_part``: each number's noise has this
    ``deviation``, and one person moves ``moved`` of them, by 1 each or, of so many rows as ``contribution`` says, all by one number. With ``noise_only``, ``alpha`` is that of the noise in an answer; its
    whole error depends on the table, and each answer carries it.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"contribution"})

    kind: Literal["release"] = "release"
    method: Literal["basic", "optimal", "textbook", "gaussian"]
    parts: Annotated[int, Field(ge=1)]
    epsilon_part: float
    noise_only: bool = False
    deviation: float = 0.0
    moved: Steps = 1
    contribution: Steps = 1


class HypothesisCalibration(_Calibration):
    """Multiplicative weights: pmw and sparse_pmw.

    ``sparse_vector`` is the calibration of the ⊤/⊥ and of the numbers, over errors in counts; its cutoff is the number
    of updates. An error above ``threshold`` steps asks for an update. ``learning_rate`` is η. ``epsilon_rows`` pays for
    the noisy number of rows, 0 where that is public. ``places`` is among how many cells a sparse hypothesis spreads the rows at
    first; null for pmw, and for streams that were opened before there was a choice.
    """

    kind: Literal["hypothesis"] = "hypothesis"
    method: Literal["calibrated", "textbook"]
    sparse_vector: SparseVectorCalibration
    threshold: Count
    learning_rate: float
    epsilon_rows: float = 0.0
    rows: Count
    places: Annotated[int, Field(ge=1)] | None = None


class EstimateCalibration(_Calibration):
    """Answers from the maximum-entropy estimate of all that was measured: pmw.

    ``sparse_vector`` is the calibration of the ⊤/⊥; its ``epsilon_answer`` pays for what is measured on all ⊤s: of each
    one's part ``epsilon_number`` goes to a single number where that is told, the rest to the marginal. With the first answer
    ``starts`` marginals are measured, those of ``warm_start`` attributes each, for ``epsilon_start`` apiece. An error
    above ``threshold`` steps asks for a ⊤. One person moves the cells of a marginal by ``marginal_sensitivity`` together.
    With ``gaussian`` noise nothing of ε is named for what is measured: a cell's noise has ``deviation_start`` in the opening and
    ``deviation_answer`` on a ⊤ without a number; a number that one person moves by W has W·``deviation_number``, for which the
    marginal beside it has as much precision less. ``estimate`` is the version of the fit: an open stream keeps to its own. With a
    ``contribution`` all parts of ε here, and all widths, are those of one row, and one person has as many.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"contribution"})

    kind: Literal["estimate"] = "estimate"
    method: Literal["maximum_entropy"] = "maximum_entropy"
    estimate: Literal[1] = 1
    sparse_vector: SparseVectorCalibration
    threshold: Count
    epsilon_rows: float = 0.0
    warm_start: Literal[0, 1, 2] = 0
    starts: Count = 0
    epsilon_start: float = 0.0
    epsilon_number: float
    marginal_sensitivity: Steps = 1
    noise: Literal["laplace", "gaussian"] = "laplace"
    deviation_start: float = 0.0
    deviation_answer: float = 0.0
    deviation_number: float = 0.0
    contribution: Steps = 1


class RunningCountCalibration(_Calibration):
    """The noise of the sums that running counts are made of: running_count.

    Sums of windows are the nodes of a ``tree`` over the horizon of ``steps`` windows: each window is in at most ``levels`` of
    them, and an answer adds up at most ``nodes``. All noise has one law: Laplace noise of the scale ``levels`` ·
    ``sensitivity_steps`` / ε, or, with ``gaussian``, noise of this ``deviation``. One person moves the nodes of a level by
    ``sensitivity_steps`` together, over all windows and ``groups``, at most ``moved`` of them, and in the ℓ₂ norm by that over the root of ``spread``.
    ``alpha`` is that of the answers of the most nodes; ``cutoff`` and ``expected_queries`` are how many answers there are: one a window and group.
    """

    kind: Literal["running_count"] = "running_count"
    method: Literal["basic", "textbook", "gaussian"]
    tree: Literal["dyadic", "balanced"]
    steps: Steps
    groups: Steps
    levels: Steps
    nodes: Steps
    moved: Steps = 1
    spread: Steps = 1
    deviation: float = 0.0


Calibration = Annotated[
    SparseVectorCalibration
    | AnswersCalibration
    | ReleaseCalibration
    | HypothesisCalibration
    | EstimateCalibration
    | RunningCountCalibration,
    Field(discriminator="kind"),
    ByKind(),
]
"""The constants of one stream, told apart by ``kind``."""
