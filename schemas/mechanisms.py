"""Mechanisms: the algorithms that a stream can run, with one model for each kind."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import ByKind, Event, Number
from schemas.domains import AttributeName, Category

MAX_ANSWERS = 1_000_000

MAX_CATEGORIES = 4096
"""Maximum number of categories of a randomized response, and of cells in one answer."""

MAX_UNIVERSE = 1 << 20
"""Maximum number of cells of a hypothesis or a histogram that is held in memory."""

MAX_PROJECTIONS = 1 << 16

MAX_SPARSITY = 256

MAX_RUNNING_WINDOWS = 1 << 20

MAX_KEYS = 4096
"""Maximum number of texts in one answer of ``unknown_groups``."""

MAX_KEY_BYTES = 448 * 1024
"""Maximum number of bytes, as JSON, of the texts in one answer of ``unknown_groups`` with their numbers."""

Cutoff = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
Gap = Annotated[float, Field(ge=1e-6, le=1.0)]
Attributes = Annotated[tuple[AttributeName, ...], Field(min_length=1, max_length=64, strict=False)]
Workload = (
    Literal["pairs"]
    | Annotated[
        tuple[Annotated[tuple[AttributeName, ...], Field(min_length=1, max_length=8, strict=False)], ...],
        Field(min_length=1, max_length=256, strict=False),
    ]
)
Sums = Annotated[tuple[AttributeName, ...], Field(max_length=64, strict=False)]


class _CountingMechanism(Event, wire_omits={"people"}):
    """A mechanism that answers counts and sums or, with ``people``, only counts of people.

    Counts and sums share the noise of the largest sensitivity. Counts of people have the sensitivity 1.
    """

    @model_validator(mode="after")
    def _require_people_or_sums(self) -> Self:
        if getattr(self, "people", False) and getattr(self, "sums", ()):
            raise ValueError("people: a stream that counts people takes no sums; leave out sums, or people")
        return self


class AboveThreshold(_CountingMechanism):
    """Answers ⊤ or ⊥ to each query against ``threshold``, up to ``cutoff`` times ⊤.

    ``monotone`` promises that the values of all queries move in the same direction between neighboring data
    sets, as counts do under add-remove; this about halves the noise. ``sums`` lists the attributes whose sums
    may be asked beside counts; the noise fits the sum with the largest sensitivity. With ``people``, the stream
    answers only counts of people, and its noise fits these.
    """

    kind: Literal["above_threshold"]
    threshold: Number
    cutoff: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class NumericSparse(_CountingMechanism):
    """AboveThreshold with a noisy value for each ⊤.

    ``numbers`` says how the value is computed: with ``fresh`` noise, for which a third part of ε is planned, or as the
    ``gap`` between the noisy value and the noisy threshold, which costs nothing. The mean error of a ``gap`` is not 0.
    """

    kind: Literal["numeric_sparse"]
    threshold: Number
    cutoff: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False
    numbers: Literal["fresh", "gap"] = "fresh"


class Laplace(Event):
    """A noisy value for each of ``answers`` queries; the noise fits the query's sensitivity.

    A query may ask for several numbers: up to ``dimensions`` values that it carries, or the counts of a table's groups.
    """

    kind: Literal["laplace"]
    answers: Cutoff = 1
    dimensions: Annotated[int, Field(ge=1, le=MAX_CATEGORIES)] = 1


class RandomizedResponse(Event):
    """Randomizes one person's category in each event.

    The stream's ε protects a person with up to ``contributions`` events; each event has an equal part of it.
    """

    kind: Literal["randomized_response"]
    categories: Annotated[tuple[Category, ...], Field(min_length=2, max_length=MAX_CATEGORIES, strict=False)] = (
        "0",
        "1",
    )

    @model_validator(mode="after")
    def _require_distinct(self) -> RandomizedResponse:
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("categories must be distinct; remove the repeated one")
        return self


class Histogram(Event, wire_omits={"answers"}):
    """Noisy counts of all cells of ``attributes``, released once; questions to it are free.

    A standing stream releases the counts of each of ``answers`` windows.
    """

    kind: Literal["histogram"]
    attributes: Attributes
    answers: Cutoff = 1


class NoisyMax(_CountingMechanism):
    """Names the candidate with the largest noisy score, for each of ``answers`` queries."""

    kind: Literal["noisy_max"]
    answers: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class Exponential(_CountingMechanism):
    """Draws a candidate with probability ∝ exp(ε·score/2Δ), for each of ``answers`` queries."""

    kind: Literal["exponential"]
    answers: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class Pmw(Event, wire_omits={"workload", "typical_error"}):
    """Answers from an estimate of the table that fits all measurements so far.

    If the estimate is too inaccurate, a ⊤ measures a marginal: the noisy counts of all cells of the question's
    attributes. There may be any number of ``attributes`` of any size; the attributes of one question have at most
    2²⁰ cells together.

    * ``warm_start`` says what the first answer measures: nothing (0), the marginals of all single attributes (1)
      or of all pairs (2), the marginals of single attributes and of the sets of the ``workload`` with the worst
      estimates (``workload``), or the planner's choice (``auto``).
    * ``workload`` has the expected questions: all ``pairs`` of attributes, or a list of sets of attributes.
    * ``updates`` is the number of ⊤s for which the grant pays; the default is a small number that may run out.
    * ``beyond`` says what follows the last update: answers from the estimate, which cost nothing and have no
      error bound (``unpromised``), or the end of the stream (``end``).
    * ``gap`` is the error of the estimate, as a share of ``rows``, that should cause a ⊤.
    * ``typical_error`` publishes the typical error of estimates with the answers, for a small part of ε. By
      default it is published if the warm start chooses from a workload.

    With ``worst_case``, the ⊤s provably suffice for every table of at most ``rows`` rows and for all questions.
    The stream then uses multiplicative weights over all cells of the attributes, at most 2²⁰ cells, and either
    ``gap`` or ``updates`` may be given.
    """

    kind: Literal["pmw"]
    attributes: Attributes
    warm_start: Literal[0, 1, 2, "workload", "auto"] = "auto"
    workload: Workload = "pairs"
    updates: Cutoff | None = None
    beyond: Literal["end", "unpromised"] = "unpromised"
    worst_case: bool = False
    gap: Gap | None = None
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None
    typical_error: bool | None = None

    @model_validator(mode="after")
    def _check_worst_case(self) -> Pmw:
        if self.worst_case and self.typical_error:
            raise ValueError(
                "typical_error: is not computed with worst_case; leave out typical_error, or worst_case"
            )
        if self.worst_case and self.gap is not None and self.updates is not None:
            raise ValueError("worst_case: gap and updates follow from each other; give one of them, or neither")
        return self

    @model_validator(mode="after")
    def _check_workload(self) -> Pmw:
        selects = self.warm_start == "workload" or self.workload != "pairs"
        if selects and self.worst_case:
            raise ValueError(
                "workload: with worst_case nothing is measured first; leave out warm_start and workload"
            )
        if isinstance(self.workload, str):
            return self
        if self.warm_start not in {"workload", "auto"}:
            raise ValueError("workload: is only for warm_start 'workload'; leave out warm_start, or workload")
        for names in self.workload:
            if len(set(names)) < len(names) or not set(names) <= set(self.attributes):
                raise ValueError(
                    "workload: a set must name different attributes of mechanism.attributes; correct the names"
                )
        if len({frozenset(names) for names in self.workload}) < len(self.workload):
            raise ValueError("workload: a set of attributes is given twice; give it once")
        return self


class SparsePmw(Event):
    """Multiplicative weights for queries of at most ``sparsity`` cells; the number of possible cells is unlimited.

    ``updates`` is the number of ⊤s for which the grant pays. ``gap`` is the error of the hypothesis, as a share of
    the rows, that causes a ⊤. If one of them is missing, it is planned so that the updates provably suffice for
    every table. If both are given, the updates may run out, and α holds until then. ``rows`` is the public number
    of rows; it is required if neighbors add or remove a row, because the true number is then private.
    """

    kind: Literal["sparse_pmw"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16
    updates: Cutoff | None = None
    gap: Gap | None = None
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None


class SparseProject(Event):
    """A noisy random projection of the table onto ``projections`` rows, released once.

    Sparse queries on the projection are free.
    """

    kind: Literal["sparse_project"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16
    projections: Annotated[int, Field(ge=1, le=MAX_PROJECTIONS)] = 4096


class LazyHistogram(Event):
    """A noisy histogram over any number of cells; only the requested cells are computed."""

    kind: Literal["lazy_histogram"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16


class UnknownGroups(Event, wire_omits={"counts"}):
    """Noisy counts of those texts of a column that are in enough rows, for each of ``answers`` questions.

    The set of released texts depends on private data, which costs δ: a text is released if its noisy count reaches
    the threshold of the plan. Without ``counts``, answers only name texts, and the whole grant is used to decide, by
    the number of people who have a text, whether it is released.
    """

    kind: Literal["unknown_groups"]
    answers: Cutoff = 1
    counts: bool = True


class RunningCount(Event):
    """Noisy running totals of each group after each of ``steps`` windows of a standing stream.

    The first answer is charged for all ``steps`` windows. The source's ``total`` bounds the events of a person.
    """

    kind: Literal["running_count"]
    steps: Annotated[int, Field(ge=1, le=MAX_RUNNING_WINDOWS)]


Mechanism = Annotated[
    AboveThreshold
    | NumericSparse
    | Laplace
    | RandomizedResponse
    | Histogram
    | NoisyMax
    | Exponential
    | Pmw
    | SparsePmw
    | SparseProject
    | LazyHistogram
    | RunningCount
    | UnknownGroups,
    Field(discriminator="kind"),
    ByKind(),
]


class Auto(Event, wire_omits={"attributes", "workload", "rows"}):
    """The budget service chooses the mechanism for a table when it opens the stream.

    It chooses among ``laplace``, ``histogram`` and ``pmw``, by public facts alone: the mechanism with the least
    expected error of a count of the ``workload``. A ``laplace`` stream pays for all ``expected_queries``. Without
    ``attributes``, questions may have all attributes of the table. ``rows`` is a public estimate of the number of
    rows; only the choice depends on it.
    """

    kind: Literal["auto"]
    attributes: Attributes | None = None
    workload: Workload = "pairs"
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None


RequestedMechanism = Annotated[Mechanism | Auto, Field(discriminator="kind"), ByKind()]
"""The mechanism of a stream to open; the opened stream has the chosen mechanism in place of ``auto``."""
