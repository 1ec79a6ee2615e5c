"""Calibrations: noise scales and limits of an opened stream, from public parameters only.

Fields that several calibrations have:

- ``sensitivity_steps``, ``shift`` and noise are in steps of ``grid``; ``alpha`` and ``grid`` are in the query's unit.
- ``alpha`` holds with probability 1 − ``beta`` for all ``expected_queries`` answers together (docs/mechanisms.md, "What
  α bounds").
- ``cutoff`` is the number of charged answers in the grant; it is 0 if one charge pays for all answers.
- ``rounding`` is the largest change of a value by rounding; it is a part of α.
- ``monotone`` is true if between neighbors all values change in the same direction, so that less noise is enough.
- ``vacuous`` is true if, with the public number of rows, even a constant answer has an error of at most α.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import ByKind, Count, Event

PositiveInt = Annotated[int, Field(ge=1)]


class _Calibration(Event):
    epsilon: float
    delta: float
    grid: float
    sensitivity_steps: PositiveInt
    cutoff: Count
    expected_queries: Count
    beta: float
    alpha: float
    rounding: float = 0.0
    vacuous: bool = False


Method = Literal["textbook", "two_sided", "two_sided_shifted", "one_sided", "one_sided_rounds"]
"""The noise of a sparse vector; see the proof note of AboveThreshold."""


class SparseVectorCalibration(_Calibration):
    """Calibration of above_threshold and numeric_sparse.

    ``epsilon_threshold``, ``epsilon_query`` and ``epsilon_answer`` are parts of ε. With ``fresh_threshold``, the
    noise of the threshold is drawn again after every ⊤, and the parts pay for the answers up to one ⊤. Otherwise
    they pay for the whole stream, and the noise of queries and answers is wider by the factor ``cutoff``.
    ``answer_alpha`` bounds the error of the numbers on ⊤s. ``numbers`` says which these are: the value with ``fresh``
    noise, or its noisy ``gap`` from the threshold.
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
    """Calibration of mechanisms that charge each answer: laplace, noisy_max, exponential.

    Each of ``cutoff`` answers is ``epsilon_answer``-DP; together they are (``epsilon``, ``delta``)-DP by ``method``:
    simple addition (``basic``) or optimal composition. ``gaussian`` noise has no ``epsilon_answer``. One person changes
    at most ``moved`` of an answer's numbers. If these change by Δ in the ℓ₂ norm, the noise has the deviation
    Δ·``deviation``. The α of a Laplace query is ``alpha`` times its sensitivity.
    """

    kind: Literal["answers"] = "answers"
    method: Literal["basic", "optimal", "textbook", "gaussian"]
    epsilon_answer: float
    monotone: bool = False
    deviation: float = 0.0
    moved: PositiveInt = 1


class ReleaseCalibration(_Calibration, wire_omits={"contribution"}):
    """Calibration of histogram, lazy_histogram, sparse_project and randomized_response.

    A stream of these mechanisms is charged once. One person affects all ``parts`` of the release: the rows of a
    projection, or the reports about the person's events. Each part is ``epsilon_part``-DP. ``gaussian`` noise has
    no ``epsilon_part``: the noise of each number has the deviation ``deviation``.

    One person changes at most ``moved`` cells, by 1 each, if the person's rows are in different cells. If all these
    rows are in the same cells, the person changes ``moved`` / ``contribution`` cells by ``contribution`` each. With
    ``noise_only``, ``alpha`` bounds only the noise, and each answer states the bound of its whole error.
    """

    kind: Literal["release"] = "release"
    method: Literal["basic", "optimal", "textbook", "gaussian"]
    parts: Annotated[int, Field(ge=1)]
    epsilon_part: float
    noise_only: bool = False
    deviation: float = 0.0
    moved: PositiveInt = 1
    contribution: PositiveInt = 1


class HypothesisCalibration(_Calibration):
    """Calibration of multiplicative weights: pmw and sparse_pmw.

    ``sparse_vector`` calibrates the published numbers, and the ⊤/⊥ decisions about the error of a count. Its
    cutoff is the number of updates. An error above ``threshold`` steps requests an update.
    ``learning_rate`` is η. ``epsilon_rows`` pays for the noisy number of rows; it is 0 if the number is public.
    A sparse hypothesis stores only some cells; ``places`` is the number of cells over which it distributes the rows
    at first. It is null for pmw and for streams of earlier versions.
    """

    kind: Literal["hypothesis"] = "hypothesis"
    method: Literal["calibrated", "textbook"]
    sparse_vector: SparseVectorCalibration
    threshold: Count
    learning_rate: float
    epsilon_rows: float = 0.0
    rows: Count
    places: Annotated[int, Field(ge=1)] | None = None


class EstimateCalibration(
    _Calibration,
    wire_omits={
        *("contribution", "rounds", "least_rounds", "rounds_rows", "epsilon_choices", "epsilon_chosen"),
        *("deviation_chosen", "epsilon_typical", "marks_guesses"),
    },
):
    """Calibration of answers from the maximum-entropy estimate: pmw.

    ``sparse_vector`` calibrates the ⊤/⊥ decisions. Its ``epsilon_answer`` pays for the measurements on all
    ⊤s, an equal part for each ⊤. If a ⊤ publishes a single number, ``epsilon_number`` of this part pays for the
    number, and the rest for the marginal. ``starts`` is the number of marginals that the first answer measures; each has
    ``warm_start`` attributes and costs ``epsilon_start``. An error above ``threshold`` steps requests a ⊤. One person moves
    the cells of a marginal by at most ``marginal_sensitivity`` in total.

    With the warm start ``workload``, the first answer measures the marginals of single attributes. Then it
    chooses and measures sets of attributes: √(rows / ``rounds_rows``) sets, at least ``least_rounds`` and at
    most ``rounds``. All choices together cost ``epsilon_choices``. All measurements together cost
    ``epsilon_chosen`` or, with Gaussian noise, as much as one marginal with the deviation ``deviation_chosen``.

    ``epsilon_typical`` pays for typical errors, the mean errors of estimates after the warm start; it is 0 if
    they are not published. If ``marks_guesses`` is true, or the warm start is ``workload``, answers
    about attributes that were not measured together are marked.

    ``gaussian`` noise has no ε per measurement. The noise of a cell has the deviation ``deviation_start`` at
    the start, and ``deviation_answer`` on a ⊤ without a number. On a ⊤ with a number that one person moves by
    W, the number's noise has the deviation W·``deviation_number``, and the cells get wider noise in return.
    ``estimate`` is the version of the fit, which is fixed for an open stream. With a ``contribution``, each ε
    and deviation is for one row, and one person has ``contribution`` rows.
    """

    kind: Literal["estimate"] = "estimate"
    method: Literal["maximum_entropy"] = "maximum_entropy"
    estimate: Literal[1, 2] = 1
    sparse_vector: SparseVectorCalibration
    threshold: Count
    epsilon_rows: float = 0.0
    warm_start: Literal[0, 1, 2, "workload"] = 0
    starts: Count = 0
    epsilon_start: float = 0.0
    rounds: Count = 0
    least_rounds: Count = 0
    rounds_rows: float = 0.0
    epsilon_choices: float = 0.0
    epsilon_chosen: float = 0.0
    deviation_chosen: float = 0.0
    epsilon_typical: float = 0.0
    marks_guesses: bool = False
    epsilon_number: float
    marginal_sensitivity: PositiveInt = 1
    noise: Literal["laplace", "gaussian"] = "laplace"
    deviation_start: float = 0.0
    deviation_answer: float = 0.0
    deviation_number: float = 0.0
    contribution: PositiveInt = 1


class RunningCountCalibration(
    _Calibration, wire_omits={"threshold", "epsilon_size", "text_bytes", "most_bytes", "size_threshold"}
):
    """Calibration of the node sums that make up running counts: running_count.

    Sums of windows are the nodes of a ``tree`` over ``steps`` windows: each window is in at most ``levels``
    nodes, and an answer adds up at most ``nodes`` nodes. The noise is Laplace with the scale
    ``levels`` · ``sensitivity_steps`` / ε or, with ``gaussian``, Gaussian with the deviation ``deviation``.
    Over all windows and ``groups``, one person changes at most ``moved`` nodes of a level, by at most
    ``sensitivity_steps`` in total. ``spread`` is the number of nodes over which the largest change is distributed:
    its ℓ₂ norm is at most ``sensitivity_steps`` / √``spread``. ``alpha`` holds for the answers with the most nodes.
    ``cutoff`` and ``expected_queries`` are both the number of answers, one for each window and group.

    With private texts as groups, no text is released after the noisy size of the texts of all windows so far
    exceeds ``size_threshold``; ``epsilon_size`` of ε pays for this size. A text is
    released from the first window on in which its noisy count is at least ``threshold``.
    """

    kind: Literal["running_count"] = "running_count"
    method: Literal["basic", "textbook", "gaussian"]
    tree: Literal["dyadic", "balanced"]
    steps: PositiveInt
    groups: PositiveInt
    levels: PositiveInt
    nodes: PositiveInt
    moved: PositiveInt = 1
    spread: PositiveInt = 1
    deviation: float = 0.0
    threshold: PositiveInt | None = None
    epsilon_size: float = 0.0
    text_bytes: PositiveInt | None = None
    most_bytes: PositiveInt | None = None
    size_threshold: int | None = None


class UnknownGroupsCalibration(_Calibration, wire_omits={"text_bytes", "most_bytes", "size_threshold"}):
    """Calibration of unknown_groups.

    Each of ``cutoff`` answers is (``epsilon_answer``, ``delta_answer``)-DP. Counts have Laplace
    noise of scale ``sensitivity_steps`` / ``epsilon_answer``, and a text is released if its noisy
    count is at least ``threshold``. One person has at most ``contribution`` rows.

    With ``selection`` no counts are released. One person moves ``sensitivity_steps`` texts, and each of them
    has an equal part of ε and δ. A text of n people is released with the largest probability that its part
    allows; a text of ``threshold`` or more people is always released.

    On live topics the texts of a window have at most ``most_bytes`` bytes together, and each text at most
    ``text_bytes``. A window whose noisy size exceeds ``size_threshold`` releases no text.
    """

    kind: Literal["unknown_groups"] = "unknown_groups"
    method: Literal["laplace", "textbook", "selection"]
    epsilon_answer: float
    delta_answer: float
    threshold: PositiveInt
    contribution: PositiveInt = 1
    text_bytes: PositiveInt | None = None
    most_bytes: PositiveInt | None = None
    size_threshold: int | None = None


Calibration = Annotated[
    SparseVectorCalibration
    | AnswersCalibration
    | ReleaseCalibration
    | HypothesisCalibration
    | EstimateCalibration
    | RunningCountCalibration
    | UnknownGroupsCalibration,
    Field(discriminator="kind"),
    ByKind(),
]
