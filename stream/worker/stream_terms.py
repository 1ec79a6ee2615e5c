"""What streams share: mechanism, source and calibration, with what is derived from them once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import (
    FIRST_VERSION,
    AboveThreshold,
    Amount,
    Calibration,
    Control,
    EventsSource,
    Extensions,
    Histogram,
    Mechanism,
    NumericSparse,
    Query,
    Source,
    SparseVectorCalibration,
    StandingQuery,
    TableSource,
    ValuesSource,
    moment_ms,
)
from schemas.wire import UNREADABLE, struct
from stream.formatting import cells_of
from stream.privacy.composition.costs import grant_cost, realised_cost, spent_amount
from stream.privacy.mechanisms.above_threshold import answer_sampler, query_sampler, threshold_sampler
from stream.privacy.mechanisms.grid import Grid
from stream.privacy.mechanisms.ranges import written
from stream.privacy.noise import Sampler, round_words
from stream.processing.dead_letters import Rejection, without_constants


class About(NamedTuple):
    """The window that asks a question, and its group or None, as answers show them.

    ``turn`` grows from each question of a stream to the next: windows ask in their order, and their groups in row-major order.
    """

    window: Any
    group: Any
    turn: int


@dataclass(frozen=True, slots=True)
class QuestionGroups:
    """The groups that a stream's questions name: their attributes, and the place of each in row-major order."""

    by: tuple[str, ...]
    places: Mapping[tuple[str | int, ...], int]

    def place(self, group: Mapping[str, str | int] | None) -> int:
        """The place of a group; Rejection if it is none of the stream's."""
        named = group or {}
        if len(named) == len(self.by):
            try:
                return self.places[tuple([named[name] for name in self.by])]
            except KeyError:
                pass
        attributes = ", ".join(self.by) or "none"
        raise Rejection(
            "malformed",
            f"group: it is none of the stream's; give a declared value of each attribute: {attributes}",
        )


_NO_WINDOW: Final = Rejection(
    "malformed", "window: the windows of its source ask this stream, and nobody else does; ask another stream"
)

_Asking: Any = msgspec.defstruct(
    "_Asking", [], bases=(struct(Query, only=frozenset({"window", "group"})),), forbid_unknown_fields=False
)
_moment_ms = lru_cache(maxsize=64)(moment_ms)
_decode_asking = msgspec.json.Decoder(_Asking).decode


def about_of(query: Any, groups: QuestionGroups) -> About:
    """What a query to a standing stream is about; Rejection if it names no window, or none of its groups."""
    if query.window is None:
        raise _NO_WINDOW
    try:
        start = _moment_ms(query.window.start)
    except ValueError as error:
        raise Rejection("malformed", f"window: {error}") from None
    return About(query.window, query.group, start * len(groups.places) + groups.place(query.group) + 1)


def about_of_event(value: bytes | None) -> tuple[Any, Any]:
    """What an event is about that may be wrong in any other way, if that can be read."""
    if value is None or b'"window"' not in value:
        return None, None
    try:
        asking = _decode_asking(without_constants(value))
    except UNREADABLE:
        return None, None
    return asking.window, asking.group


def quotes_of(group: Mapping[str, Any] | None) -> int:
    """Quotation marks in a window and a group with none in their texts: two a name and two a text."""
    return 10 if group is None else 12 + 2 * len(group) + 2 * sum(isinstance(one, str) for one in group.values())


WireAmount: Any = struct(Amount)

STANDING_HISTOGRAM: Final = "standing_histogram"
"""The family of histograms of each window of a live topic."""


@dataclass(slots=True, eq=False)
class StreamTerms:
    """Everything that streams of equal mechanism, source, calibration and, on live topics, standing query share.

    The mechanism of a sparse vector stands here without its threshold, which is each stream's own.
    """

    source: Source
    mechanism: Mechanism
    calibration: Calibration
    fingerprint: str | None
    version: int = FIRST_VERSION
    standing: StandingQuery | None = None
    _amounts: dict[tuple[bool, int, int, Extensions], Any] = field(default_factory=dict)
    _samplers: dict[str, Sampler] = field(default_factory=dict)
    _grid: Grid | None = None
    _groups: QuestionGroups | None = None

    @property
    def shown_version(self) -> int | None:
        """The version of the data as answers tell it: the first is not named."""
        return None if self.version == FIRST_VERSION else self.version

    @property
    def is_sparse_vector(self) -> bool:
        """Whether the mechanism compares with a threshold of the stream's own."""
        return isinstance(self.mechanism, AboveThreshold | NumericSparse)

    @property
    def trusts_values(self) -> bool:
        """Whether questions carry the private numbers: those of a feed, or what was counted in the windows of a live topic."""
        return self.source.kind in {"values", "events"}

    @property
    def plain(self) -> bool:
        """Whether questions are trusted values that are compared with a threshold: nothing else need be known of them."""
        return self.is_sparse_vector and self.trusts_values

    @property
    def family(self) -> str:
        """Which family answers: its name is the mechanism's kind, but for a histogram of each window of a live topic."""
        standing_histogram = self.standing is not None and isinstance(self.mechanism, Histogram)
        return STANDING_HISTOGRAM if standing_histogram else self.mechanism.kind

    @property
    def ends_at_cutoff(self) -> bool:
        """Whether a stream is over when its last charged answer is out."""
        return getattr(self.mechanism, "beyond", "end") == "end"

    @property
    def sparse_vector(self) -> SparseVectorCalibration:
        """The calibration of a sparse vector's ⊤/⊥: the stream's own, or that inside a hypothesis's."""
        inner = self.calibration
        if inner.kind in {"hypothesis", "estimate"}:
            inner = inner.sparse_vector
        if inner.kind != "sparse_vector":
            raise TypeError(f"a stream of kind {inner.kind} has no threshold")
        return inner

    @property
    def grid(self) -> Grid:
        """How private numbers become steps of the calibration's grid."""
        if self._grid is None:
            self._grid = _grid_of(self.source, self.calibration)
        return self._grid

    @property
    def groups(self) -> QuestionGroups:
        """What the questions of a standing stream are about in a window: its groups, or all of them together."""
        if self._groups is None:
            if self.standing is None or not isinstance(self.source, EventsSource):
                raise TypeError(f"a stream over {self.source.kind} is no standing one")
            by = () if self.family == STANDING_HISTOGRAM else self.standing.by
            cells = cells_of(self.source.attributes, by)
            self._groups = QuestionGroups(by, {tuple(cell.values()): place for place, cell in enumerate(cells)})
        return self._groups

    @property
    def threshold_noise(self) -> Sampler:
        """The law of ρ."""
        return self._sampler("threshold", threshold_sampler)

    @property
    def query_noise(self) -> Sampler:
        """The law of ν."""
        return self._sampler("query", query_sampler)

    @property
    def answer_noise(self) -> Sampler:
        """The law of the fresh noise of numbers."""
        return self._sampler("answer", answer_sampler)

    def barriers(self, subkeys: Sequence[bytes], tops: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """ρ + s of streams of these subkeys, each after so many ⊤s; the same for ever where ρ is drawn once."""
        rounds = np.asarray(tops, dtype=np.int64)
        if not self.sparse_vector.fresh_threshold:
            rounds = np.zeros_like(rounds)
        words, low = round_words(subkeys, rounds, self.threshold_noise.words)
        return self.threshold_noise.draw(words, low) + self.sparse_vector.shift

    def _sampler(self, name: str, law: Callable[[SparseVectorCalibration], Sampler]) -> Sampler:
        if (sampler := self._samplers.get(name)) is None:
            sampler = self._samplers[name] = law(self.sparse_vector)
        return sampler

    def spent(self, answered: int, tops: int, surplus: int = 0, extensions: Extensions = ()) -> Any:
        """The realised cost after so many answers and ⊤s, as the wire shows it."""
        key = (answered > 0, tops, surplus, extensions)
        if (amount := self._amounts.get(key)) is None:
            of = (self.calibration, self.source.accountant)
            cost = realised_cost(*of, answered, tops, surplus, extensions)
            shown = spent_amount(cost, grant_cost(*of, extensions), self.source)
            amount = WireAmount(shown.epsilon, shown.delta, shown.rho)
            self._amounts[key] = amount
        return amount


def _grid_of(source: Source, calibration: Calibration) -> Grid:
    if isinstance(source, TableSource):
        return Grid.whole(calibration.grid)
    if not isinstance(source, ValuesSource):
        # Sums of a running count's nodes are told again and again beside the same noise: their range never changes.
        return Grid(written(calibration.grid))
    return Grid.of_feed(
        source.grid,
        sensitivity=source.sensitivity,
        sensitivity_steps=calibration.sensitivity_steps,
        minimum=source.minimum,
        maximum=source.maximum,
    )


class TermsTable:
    """All terms of a partition's streams, by number; equal terms stand there once."""

    def __init__(self) -> None:
        self.all: list[StreamTerms] = []
        self._index: dict[tuple[Any, ...], int] = {}
        self._of_a_period: dict[str, EventsSource] = {}

    def index_of(self, definition: Control) -> int:
        """The number of a definition's terms."""
        mechanism = definition.spec.mechanism
        if isinstance(mechanism, AboveThreshold | NumericSparse):
            mechanism = mechanism.model_copy(update={"threshold": 0.0})
        source, calibration = definition.source, definition.calibration
        data = (definition.fingerprint, definition.version, definition.spec.standing)
        key = (blake3(source.model_dump_json().encode()).digest(), mechanism, calibration, *data)
        if (index := self._index.get(key)) is None:
            index = self._index[key] = len(self.all)
            if isinstance(source, EventsSource) and source.period_of is not None:
                source = source.sharing(self._of_a_period.setdefault(source.period_of, source))
            self.all.append(StreamTerms(source, mechanism, calibration, *data))
        return index
