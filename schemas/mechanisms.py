"""Mechanisms: what a stream can be asked to run, one model per kind."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import ByKind, Event, Number, SparingEvent
from schemas.sources import AttributeName, Category

MAX_ANSWERS = 1_000_000
"""Most charged answers that one stream may be granted."""

MAX_CATEGORIES = 4096
"""Most categories of a randomized response, and most cells that one answer lists."""

MAX_UNIVERSE = 1 << 20
"""Most cells of a hypothesis or a histogram that is held in memory."""

MAX_PROJECTIONS = 1 << 16
"""Most rows of a projection."""

MAX_SPARSITY = 256
"""Most cells that one sparse query names."""

MAX_HORIZON = 1 << 20
"""Most windows of a running count."""

Cutoff = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
Gap = Annotated[float, Field(ge=1e-6, le=1.0)]
Attributes = Annotated[tuple[AttributeName, ...], Field(min_length=1, max_length=64, strict=False)]
Sums = Annotated[tuple[AttributeName, ...], Field(max_length=64, strict=False)]


class _Compared(SparingEvent):
    """Mechanisms that take counts and sums by one sensitivity; with ``people`` they take counts of people alone.

    One person moves such a count by 1, however many rows of each count, and the noise fits that.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"people"})

    @model_validator(mode="after")
    def _people_alone(self) -> Self:
        if getattr(self, "people", False) and getattr(self, "sums", ()):
            raise ValueError(
                "people: counts of people are all that such a stream takes; leave sums out, or people"
            )
        return self


class AboveThreshold(_Compared):
    """Answer ⊤ or ⊥ to each query against ``threshold`` until ``cutoff`` ⊤s are out.

    ``monotone`` promises that between neighbouring data sets all query values move in the same direction (true of
    counts under add-remove); the noise is then about half. ``sums`` lists the attributes whose sums may be asked for
    beside counts; the noise then fits the largest of them. With ``people`` the stream takes counts of people alone, and its
    noise fits those.
    """

    kind: Literal["above_threshold"]
    threshold: Number
    cutoff: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class NumericSparse(_Compared):
    """AboveThreshold whose ⊤s carry a noisy value.

    ``numbers`` says where the value comes from: ``fresh`` noise, for which a third share of ε is planned, or the
    ``gap`` between the noisy value and the noisy threshold, which is free; its typical error is not centred.
    """

    kind: Literal["numeric_sparse"]
    threshold: Number
    cutoff: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False
    numbers: Literal["fresh", "gap"] = "fresh"


class Laplace(Event):
    """A noisy value for each of ``answers`` queries, whose noise fits the query's own sensitivity.

    A query may hold a vector: up to ``dimensions`` trusted values, or the counts of a table's groups.
    """

    kind: Literal["laplace"]
    answers: Cutoff = 1
    dimensions: Annotated[int, Field(ge=1, le=MAX_CATEGORIES)] = 1


class RandomizedResponse(Event):
    """Each event is one person's category; the answer is a category drawn around it.

    The stream's ε protects a person with as many events as the source's ``contributions`` allows; each event gets its part
    of it.
    """

    kind: Literal["randomized_response"]
    categories: Annotated[tuple[Category, ...], Field(min_length=2, max_length=MAX_CATEGORIES, strict=False)] = (
        "0",
        "1",
    )

    @model_validator(mode="after")
    def _distinct(self) -> RandomizedResponse:
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("categories must be distinct; remove the repeated one")
        return self


class Histogram(SparingEvent):
    """The noisy counts of all cells of the ``attributes``, released once; every question to the release is free.

    A standing stream's are those of each of ``answers`` windows.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"answers"})

    kind: Literal["histogram"]
    attributes: Attributes
    answers: Cutoff = 1


class NoisyMax(_Compared):
    """The name of the candidate whose noisy score is largest, for each of ``answers`` queries."""

    kind: Literal["noisy_max"]
    answers: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class Exponential(_Compared):
    """The name of a candidate, drawn with probability ∝ exp(ε·score/2Δ), for each of ``answers`` queries."""

    kind: Literal["exponential"]
    answers: Cutoff = 1
    monotone: bool = False
    sums: Sums = ()
    people: bool = False


class Pmw(Event):
    """Answers from an estimate of the table that fits all that was measured; what it gets wrong is measured.

    Any number of ``attributes`` of any size; only those of one question have at most 2²⁰ cells together. Each ⊤ measures a
    whole marginal, the noisy counts of all cells of the question's attributes. ``warm_start`` says what is measured with the
    first answer: the marginals of all single attributes (1), of all pairs (2), nothing (0), or what the planner takes
    (``auto``). ``updates`` is how many ⊤s are paid for, by default a small number that may run out; ``beyond`` says what
    becomes of the stream then: it ends, or goes on answering from the estimate without a promise, at no cost. ``gap`` is
    how large an error of the estimate, as a share of the ``rows``, should call for a ⊤.

    With ``worst_case`` the stream is planned so that the ⊤s provably last for every table of at most ``rows`` rows and every
    asker, by multiplicative weights over all cells of the attributes, at most 2²⁰ of them; either ``gap`` or ``updates`` may
    then be given.
    """

    kind: Literal["pmw"]
    attributes: Attributes
    warm_start: Literal[0, 1, 2, "auto"] = "auto"
    updates: Cutoff | None = None
    beyond: Literal["end", "unpromised"] = "end"
    worst_case: bool = False
    gap: Gap | None = None
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None

    @model_validator(mode="after")
    def _lasting(self) -> Pmw:
        if self.worst_case and self.gap is not None and self.updates is not None:
            raise ValueError("worst_case: gap and updates follow from each other; give one of them, or neither")
        if self.worst_case and self.beyond != "end":
            raise ValueError("beyond: with worst_case the updates last; leave it at 'end'")
        return self


class SparsePmw(Event):
    """Multiplicative weights for queries that name at most ``sparsity`` cells of a universe of any size.

    ``updates`` fixes how many ⊤s are paid for, ``gap`` how large an error of the hypothesis, as a share of the rows, is
    worth one. What is not given is planned so that the updates provably last for every table; with both given they may
    run out, and α holds while they last. ``rows`` is the public number of rows; it must be given where neighbours add or
    remove a row, for the true number is private there.
    """

    kind: Literal["sparse_pmw"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16
    updates: Cutoff | None = None
    gap: Gap | None = None
    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None


class SparseProject(Event):
    """A noisy random projection of the table onto ``projections`` rows, released once; sparse queries on it are free."""

    kind: Literal["sparse_project"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16
    projections: Annotated[int, Field(ge=1, le=MAX_PROJECTIONS)] = 4096


class LazyHistogram(Event):
    """A noisy histogram over a universe of any size, of which only the cells that are asked for are ever computed."""

    kind: Literal["lazy_histogram"]
    attributes: Attributes
    sparsity: Annotated[int, Field(ge=1, le=MAX_SPARSITY)] = 16


class RunningCount(Event):
    """The noisy number so far after each of ``steps`` windows of a standing stream, for each group.

    All answers of this horizon are charged once, with the first. A person counts no more often than the source's ``total`` says.
    """

    kind: Literal["running_count"]
    steps: Annotated[int, Field(ge=1, le=MAX_HORIZON)]


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
    | RunningCount,
    Field(discriminator="kind"),
    ByKind(),
]
"""What a stream runs, told apart by ``kind``."""
