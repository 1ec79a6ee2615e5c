"""The terms that many streams share, and the windows and groups of standing streams' questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
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
from schemas.wire import DECODE_ERRORS, struct
from stream.caches import RecentCache
from stream.formatting import cells_of
from stream.privacy.accuracy.source_facts import groups_by_text
from stream.privacy.composition.costs import exact_decimal, shortest_decimal, shown_spending
from stream.privacy.composition.losses import is_running_count_of_texts
from stream.privacy.mechanisms.above_threshold import answer_sampler, query_sampler, threshold_sampler
from stream.privacy.mechanisms.private_values import Grid
from stream.privacy.noise.keyed_noise import round_words
from stream.privacy.noise.samplers import Sampler, Symmetric
from stream.processing.dead_letters import malformed_rejection, replace_nan_and_infinity


class WindowAndGroup(NamedTuple):
    """The window and the group (None without groups) of a standing stream's question.

    ``turn`` grows with each question of a stream: questions are ordered by window, then by group in row-major
    order.
    """

    window: Any
    group: Any
    turn: int


@dataclass(frozen=True, slots=True)
class QuestionGroups:
    """The groups of a stream: their attributes ``by``, and each group's index in row-major order."""

    by: tuple[str, ...]
    places: Mapping[tuple[str | int | float, ...], int]

    def index_of(self, group: Mapping[str, str | int | float] | None) -> int:
        """Return the index of a group; Rejection if the stream has no such group."""
        named = group or {}
        if len(named) == len(self.by):
            try:
                return self.places[tuple([named[name] for name in self.by])]
            except KeyError:
                pass
        attributes = ", ".join(self.by) or "none"
        raise malformed_rejection(
            f"group: not a group of this stream; give a declared value of each attribute: {attributes}"
        )


_NO_WINDOW: Final = malformed_rejection(
    "window: missing; Sotto itself asks this standing stream, once per window; ask another stream"
)

_WindowFields: Any = msgspec.defstruct(
    "_WindowFields", [], bases=(struct(Query, only=frozenset({"window", "group"})),), forbid_unknown_fields=False
)
_AMOUNTS_KEPT: Final = 1 << 10
_moment_ms = lru_cache(maxsize=64)(moment_ms)
_decode_window_fields = msgspec.json.Decoder(_WindowFields).decode


def window_and_group_of(query: Any, groups: QuestionGroups) -> WindowAndGroup:
    """Return a query's window and group; Rejection if the window is missing or the group unknown."""
    if query.window is None:
        raise _NO_WINDOW.with_traceback(None)
    try:
        start = _moment_ms(query.window.start)
    except ValueError as error:
        raise malformed_rejection(f"window: {error}") from None
    return WindowAndGroup(query.window, query.group, start * len(groups.places) + groups.index_of(query.group) + 1)


def window_and_group_of_event(value: bytes | None) -> tuple[Any, Any]:
    """Return window and group of an event that may be malformed; (None, None) if they are unreadable."""
    if value is None or b'"window"' not in value:
        return None, None
    try:
        fields = _decode_window_fields(replace_nan_and_infinity(value))
    except DECODE_ERRORS:
        return None, None
    return fields.window, fields.group


def count_quotes(group: Mapping[str, Any] | None) -> int:
    """Count the quotation marks of window and group in a query's JSON without escapes."""
    return 10 if group is None else 12 + 2 * len(group) + 2 * sum(isinstance(one, str) for one in group.values())


WireAmount: Any = struct(Amount)

STANDING_HISTOGRAM: Final = "standing_histogram"
"""The family that releases a histogram of each window of a live topic."""
WINDOW_QUANTILES: Final = "window_quantiles"
"""The family that answers quantiles of each window of a live topic."""
RUNNING_TEXTS: Final = "running_texts"
"""The family that counts private texts over the windows of a live topic."""
HYPOTHESIS: Final = "hypothesis"
"""The family of multiplicative weights: textbook and worst-case ``pmw``, and ``sparse_pmw``."""


@dataclass(eq=False)
class StreamTerms:
    """The terms of streams with equal mechanism, source, calibration and standing query.

    The mechanism of a sparse vector is stored without its threshold, which differs by stream.
    """

    source: Source
    mechanism: Mechanism
    calibration: Calibration
    fingerprint: str | None
    version: int = FIRST_VERSION
    standing: StandingQuery | None = None
    _amounts: RecentCache[tuple[bool, int, int, Extensions], Any] = field(
        default_factory=lambda: RecentCache(_AMOUNTS_KEPT)
    )

    @property
    def shown_version(self) -> int | None:
        """The data version that answers show: None for the first version."""
        return None if self.version == FIRST_VERSION else self.version

    @property
    def is_sparse_vector(self) -> bool:
        """True if the mechanism compares numbers with a threshold."""
        return isinstance(self.mechanism, AboveThreshold | NumericSparse)

    @property
    def trusts_values(self) -> bool:
        """True if questions carry the private numbers, from a producer or a feed."""
        return self.source.kind in {"values", "events"}

    @property
    def is_plain(self) -> bool:
        """True if the stream is a sparse vector over values in queries, answered without a table."""
        return self.is_sparse_vector and self.trusts_values

    @property
    def family(self) -> str:
        """The family's name: the mechanism's kind, or one of the constants above."""
        if self.standing is not None and self.standing.quantile is not None:
            return WINDOW_QUANTILES
        if self.standing is not None and isinstance(self.mechanism, Histogram):
            return STANDING_HISTOGRAM
        if is_running_count_of_texts(self.calibration):
            return RUNNING_TEXTS
        return HYPOTHESIS if self.calibration.kind == "hypothesis" else self.mechanism.kind

    @property
    def has_updates(self) -> bool:
        """True if each charged answer writes an update to the changelog."""
        return self.calibration.kind in {"hypothesis", "estimate"} or self.family == RUNNING_TEXTS

    @property
    def ends_at_cutoff(self) -> bool:
        """True if the stream ends with its last charged answer."""
        return getattr(self.mechanism, "beyond", "end") == "end"

    @property
    def sparse_vector(self) -> SparseVectorCalibration:
        """The calibration of the comparisons; it is a part of the calibration of a hypothesis or estimate."""
        inner = self.calibration
        if inner.kind in {"hypothesis", "estimate"}:
            inner = inner.sparse_vector
        if inner.kind != "sparse_vector":
            raise TypeError(f"a stream of kind {inner.kind} has no threshold")
        return inner

    @cached_property
    def grid(self) -> Grid:
        """The grid that rounds private numbers to steps."""
        source, step = self.source, self.calibration.grid
        if isinstance(source, TableSource):
            return Grid.for_table(step)
        if isinstance(source, ValuesSource):
            return Grid.for_values(source.grid, source.minimum, source.maximum)
        # A running count publishes each partial sum many times with the same noise, so the grid must not
        # depend on the range of the values.
        return Grid(shortest_decimal(step))

    @cached_property
    def value_grid(self) -> Grid:
        """The grid of the numbers to compare; a table's numbers are whole steps already."""
        return Grid.for_table(1.0) if isinstance(self.source, TableSource) else self.grid

    @cached_property
    def steps_in_one(self) -> Fraction:
        """The number of grid steps in 1."""
        return 1 / exact_decimal(self.calibration.grid)

    @cached_property
    def groups(self) -> QuestionGroups:
        """The groups of a standing stream's questions; one entry if a question covers all groups."""
        if self.standing is None or not isinstance(self.source, EventsSource):
            raise TypeError(f"a stream over {self.source.kind} is not a standing stream")
        together = isinstance(self.mechanism, Histogram) or groups_by_text(self.source, self.standing)
        by = () if together else self.standing.by
        cells = cells_of(self.source.attributes, by)
        return QuestionGroups(by, {tuple(cell.values()): place for place, cell in enumerate(cells)})

    @cached_property
    def threshold_noise(self) -> Sampler:
        """The distribution of ρ, the noise of a threshold."""
        return threshold_sampler(self.sparse_vector)

    @cached_property
    def query_noise(self) -> Sampler:
        """The distribution of ν, the noise of a question's number in a comparison."""
        return query_sampler(self.sparse_vector)

    @cached_property
    def answer_noise(self) -> Symmetric:
        """The distribution of the noise of a published number."""
        return answer_sampler(self.sparse_vector)

    def barriers(self, subkeys: Sequence[bytes], tops: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Draw the threshold's noise ρ plus the shift s for each subkey and number of ⊤s.

        If ρ is drawn only once per stream, the numbers of ⊤s are ignored.
        """
        rounds = np.asarray(tops, dtype=np.int64)
        if not self.sparse_vector.fresh_threshold:
            rounds = np.zeros_like(rounds)
        words, low = round_words(subkeys, rounds, self.threshold_noise.words)
        return self.threshold_noise.draw(words, low) + self.sparse_vector.shift

    def spent(self, answered: int, tops: int, surplus: int = 0, extensions: Extensions = ()) -> Any:
        """Return the realised cost after these numbers of answers and ⊤s, as an ``Amount``."""
        key = (answered > 0, tops, surplus, extensions)
        if (amount := self._amounts.get(key)) is None:
            shown = shown_spending(self.calibration, self.source, answered, tops, surplus, extensions)
            amount = WireAmount(shown.epsilon, shown.delta, shown.rho)
            self._amounts.put(key, amount)
        return amount


class TermsTable:
    """The distinct terms of a partition's streams; ``all`` has them in order of their index."""

    def __init__(self) -> None:
        self.all: list[StreamTerms] = []
        self._index: dict[tuple[Any, ...], int] = {}
        self._source_by_period_name: dict[str, EventsSource] = {}

    def index_of(self, definition: Control) -> int:
        """Return the index of a definition's terms, which are added if they are new."""
        mechanism = definition.spec.mechanism
        if isinstance(mechanism, AboveThreshold | NumericSparse):
            mechanism = mechanism.model_copy(update={"threshold": 0.0})
        source, calibration = definition.source, definition.calibration
        data = (definition.fingerprint, definition.version, definition.spec.standing)
        key = (blake3(source.model_dump_json().encode()).digest(), mechanism, calibration, *data)
        if (index := self._index.get(key)) is None:
            index = self._index[key] = len(self.all)
            if isinstance(source, EventsSource) and source.period_of is not None:
                source = source.with_shared_attributes(
                    self._source_by_period_name.setdefault(source.period_of, source)
                )
            self.all.append(StreamTerms(source, mechanism, calibration, *data))
        return index

    def forget_others(self, in_use: Iterable[int]) -> frozenset[int]:
        """Forget all terms except the first ones and those in use; return the indices of the forgotten terms.

        Such an index is never used again; the list then has the first terms at this index.
        """
        forgotten = frozenset(self._index.values()) - {0, *in_use}
        self._index = {key: index for key, index in self._index.items() if index not in forgotten}
        for index in forgotten:
            self.all[index] = self.all[0]
        return forgotten
