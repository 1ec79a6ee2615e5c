"""The protocol of families of mechanisms, and their common functions.

A family resolves questions to its mechanism's inputs (private numbers, public weights) and answers
the questions in order. The processor keeps positions, indices, charges, cutoffs and checkpoints.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import numpy as np

from schemas import (
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    Interval,
    Numeric,
    StandingQuery,
    TableSource,
    TextInterval,
    form_of,
)
from schemas.queries import STATISTICS, Group
from stream.caches import BoundedCache, RecentCache
from stream.formatting import find_name_in_other_case
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.mechanisms.private_values import decode_text_counts
from stream.privacy.noise import samplers
from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words
from stream.privacy.noise.samplers import LowWords, Sampler, Words, sampler
from stream.privacy.planning.hypothesis_plans import rows_rate
from stream.privacy.planning.plans import epsilon_of, has_gaussian_charges, parts_within, shown_price
from stream.processing.dead_letters import PRICE, Rejection, malformed_rejection
from stream.tables.counted_table import CountedTable
from stream.tables.expressions import Predicate, conjunction
from stream.tables.sensitivity import rows_are_public
from stream.tables.store import TableStore
from stream.tables.table_errors import private_text_message, quote_names
from stream.tables.table_errors import quote_name as described
from stream.tables.texts import TextGroups
from stream.worker.hosted_streams import HostedStreams
from stream.worker.stream_records import Update, decode_update, encode_update
from stream.worker.stream_terms import WindowAndGroup


@dataclass(frozen=True, slots=True)
class AdmittedQuestion:
    """An admitted question: its place in the batch, its stream's slot, and its ``content``.

    ``content`` is the result of ``Family.admit``. ``window_and_group`` is the window and group of a standing
    stream's question.
    """

    place: int
    id: str
    slot: int
    offset: int
    payload: bytes
    content: Any
    window_and_group: WindowAndGroup | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question as it is published.

    - ``parts``: the cost of a ``charged`` answer in parts of an ordinary charge (``PARTS_PER_CHARGE``).
    - ``interval``, ``intervals``: confidence intervals of ``estimate`` and ``estimates``.
    - ``choice_intervals``: confidence intervals of ``choice`` or ``choices``.
    - ``keys``: the released texts, in the order of ``estimates`` if there are any.
    - ``price``: the displayed ε of a question with an alpha.
    - ``update``: the changelog record of a change of the stream's state.
    - ``refusal``: the reason why the question is refused; then no state changes.
    """

    charged: bool
    outcome: Literal["above", "below", "answer"] = "answer"
    estimate: float | None = None
    basis: str | None = None
    estimates: tuple[float, ...] | None = None
    choice: str | None = None
    keys: tuple[str, ...] | None = None
    alpha: float | None = None
    update: Update | None = None
    parts: int = PARTS_PER_CHARGE
    price: float | None = None
    refusal: Rejection | None = None
    interval: Interval | None = None
    intervals: tuple[Interval, ...] | None = None
    top_groups: tuple[Group, ...] | None = None
    choices: tuple[str, ...] | None = None
    choice_intervals: tuple[TextInterval, ...] | None = None
    typical_error: float | None = None


def answer_by_stream(
    questions: Sequence[AdmittedQuestion], answer: Callable[[int, Sequence[AdmittedQuestion]], list[Reply | None]]
) -> list[Reply | None]:
    """Call ``answer`` with the questions of each stream, and return all replies in order."""
    places: dict[int, list[int]] = {}
    for place, one in enumerate(questions):
        places.setdefault(one.slot, []).append(place)
    replies: list[Reply | None] = [None] * len(questions)
    for slot, members in places.items():
        for place, reply in zip(members, answer(slot, [questions[place] for place in members]), strict=True):
            replies[place] = reply
    return replies


class TableFreedError(Exception):
    """The table of an ended stream has been freed from memory."""


class Family(ABC):
    """Answers the questions to all streams of a partition with one kind of mechanism.

    ``counts_rows`` is True if each question needs a few counts and sums of a table, which a database computes
    together for a batch.
    """

    counts_rows: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = context.streams

    @abstractmethod
    def admit(self, slot: int, query: Any) -> Any:
        """Resolve a query (model or decoded struct) without changing state, or raise Rejection."""

    @abstractmethod
    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions to open streams in order; the answer is None if a stream's grant is used up."""


class PaidFamily(Family):
    """A family that charges each answer; subclasses define ``_reply`` or, for several questions, ``_replies``."""

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions for which their streams' grants pay; the other answers are None."""

        def answer_paid(slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
            paid = asked[: max(0, self._streams.answers_left(slot))]
            return [*(self._replies(slot, paid) if paid else ()), *[None] * (len(asked) - len(paid))]

        return answer_by_stream(questions, answer_paid)

    def _replies(self, slot: int, paid: Sequence[AdmittedQuestion]) -> list[Reply]:
        """Answer at least one question to one stream."""
        del slot
        return [self._reply(one) for one in paid]

    def _reply(self, one: AdmittedQuestion) -> Reply:
        raise NotImplementedError


State = TypeVar("State")


STATE_CACHE_BYTES: Final = 128 << 20
"""Maximum number of bytes of a family's cached states; other states are built again from their updates."""


class RestorableFamily(Family, Generic[State]):
    """A family whose streams have a state that follows from their updates (changelog records)."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context)
        self._updates: dict[int, tuple[str, list[bytes]]] = {}
        self._states: BoundedCache[tuple[int, str], State] = BoundedCache(
            STATE_CACHE_BYTES, self._weigh_state, name
        )

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions in order, grouped by stream."""
        return answer_by_stream(questions, self._answer_stream)

    def restore_updates(self, slot: int, updates: Sequence[bytes]) -> None:
        """Keep a stream's updates; its state is built at its next question."""
        incarnation = self._streams.incarnations[slot]
        self._states.pop((slot, incarnation))
        self._updates[slot] = incarnation, list(updates)

    def forget_stream(self, slot: int) -> None:
        """Forget the updates and the state of a retired stream."""
        self._updates.pop(slot, None)
        self._states.pop((slot, self._streams.incarnations[slot]))

    @abstractmethod
    def _answer_stream(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions of one stream."""

    @abstractmethod
    def _build_state(self, slot: int, updates: Sequence[Any]) -> State:
        """Build a stream's state from its updates."""

    @staticmethod
    @abstractmethod
    def _weigh_state(state: State) -> int:
        """Return about how many bytes a state takes."""

    def _state(self, slot: int) -> State:
        key = slot, self._streams.incarnations[slot]
        if (state := self._states.get(key)) is None:
            state = self._build_state(slot, [decode_update(one) for one in self._updates_of(slot)])
            self._states.put(key, state)
        return state

    def _keep_state(self, slot: int, state: State, updates: Iterable[Update]) -> None:
        """Keep a state after it has answered questions, and the updates that it has made."""
        self._updates_of(slot).extend(map(encode_update, updates))
        self._states.put((slot, self._streams.incarnations[slot]), state)

    def _updates_of(self, slot: int) -> list[bytes]:
        incarnation = self._streams.incarnations[slot]
        known = self._updates.get(slot)
        if known is None or known[0] != incarnation:
            known = self._updates[slot] = incarnation, []
        return known[1]


TERMS_CACHE_SIZE: Final = 1 << 10
"""Size of caches of values derived from streams' terms: this number of recent ones, and as many older ones."""

Kind = TypeVar("Kind")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Context:
    """The streams and tables of a worker's partition, with functions that all families use."""

    streams: HostedStreams
    tables: TableStore
    topic: str
    partition: int
    await_tables: Callable[[Iterable[int]], None] = lambda _: None
    """Waits until the tables of the streams in some slots are loaded."""

    def mechanism(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's mechanism; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).mechanism, kind)

    def calibration(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's calibration; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).calibration, kind)

    def source(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's source; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).source, kind)

    def standing_query(self, slot: int) -> StandingQuery:
        """Return a stream's standing query; TypeError if it has none."""
        standing = self.streams.terms_at(slot).standing
        if standing is None:
            raise TypeError(f"the stream in slot {slot} is not a standing stream")
        return standing

    def derive_words(self, questions: Sequence[AdmittedQuestion], count: int) -> tuple[Words, LowWords]:
        """Derive uniform words for the answers to questions, from the questions' events."""
        return event_words(
            [self.streams.noise.subkey(one.slot, DrawRole.ANSWER) for one in questions],
            self.topic,
            self.partition,
            [one.offset for one in questions],
            [one.payload for one in questions],
            count,
        )

    def answer_noise(self, questions: Sequence[AdmittedQuestion], laws: Sequence[Sampler]) -> list[list[int]]:
        """Draw noise of these laws for each question."""
        words, low = self.derive_words(questions, sum(law.words for law in laws))
        columns = []
        start = 0
        for law in laws:
            end = start + law.words
            columns.append(
                law.draw(words[:, start:end], lambda row, start=start, end=end: low(row)[start:end])  # type: ignore[misc]
            )
            start = end
        return np.stack(columns, axis=1).tolist()  # type: ignore[no-any-return]

    def noisy_rows(self, slot: int, calibration: HypothesisCalibration | EstimateCalibration) -> int:
        """Return the private number of rows, with noise drawn once per stream."""
        law = sampler("two_sided", rows_rate(calibration))
        words, low = round_words([self.streams.noise.subkey(slot, DrawRole.ROWS)], [0], law.words)
        return max(1, self.table(slot).private_row_count + int(law.draw(words, low)[0]))

    def trusts_values(self, slot: int) -> bool:
        """Return True if this stream's queries carry the private values, which are trusted."""
        return self.streams.terms_at(slot).trusts_values

    def source_table(self, slot: int) -> TableSource:
        """Return a stream's table source; Rejection if its source has no table."""
        source = self.streams.terms_at(slot).source
        if not isinstance(source, TableSource):
            raise malformed_rejection("where: this stream's source has no table; send a 'value' instead")
        return source

    def table(self, slot: int) -> CountedTable:
        """Return a stream's private table; TableFreedError if the stream has ended and the table is freed."""
        terms, source = self.streams.terms_at(slot), self.source_table(slot)
        if (known := self.tables.table_in_memory(source, terms.fingerprint)) is not None:
            return known
        if not self.streams.life.can_answer(slot):
            raise TableFreedError
        try:
            return self.tables.get(source, terms.fingerprint, terms.version)
        except ValueError as error:
            raise Rejection("table", f"stream: {error}") from None

    def predicate(self, slot: int, where: str | None, field: str = "where") -> Predicate:
        """Parse a predicate; None means all rows."""
        text = "TRUE" if where is None else where
        return _reject_value_errors(field, lambda: self.tables.predicate(self.source_table(slot), text))

    def count(self, slot: int, where: str | None, field: str = "where") -> int:
        """Return the private true count of a predicate."""
        return _reject_value_errors(field, lambda: self.table(slot).count(self.predicate(slot, where, field)))

    def count_together(self, questions: Iterable[tuple[int, Any]]) -> None:
        """Make each table in a database compute the counts and sums of several questions at once.

        ``questions`` has the slot and the query of each question. A question that is refused adds nothing.
        """
        wanted: dict[CountedTable, tuple[set[Predicate], set[tuple[str, Predicate]]]] = {}
        for slot, query in questions:
            source = self.streams.terms_at(slot).source
            if not isinstance(source, TableSource) or source.engine == "memory":
                continue
            with suppress(Rejection, TableFreedError):
                counts, sums = wanted.setdefault(self.table(slot), (set(), set()))
                for where, summed in _list_measures(query):
                    predicate = conjunction([self.predicate(slot, one) for one in where])
                    counts.add(predicate)
                    sums |= set() if summed is None else {(summed, predicate)}
        for table, (counts, sums) in wanted.items():
            table.count_together(sorted(counts, key=repr), sorted(sums, key=repr))

    def people(self, slot: int, where: str | None, field: str = "where", min_rows: int | None = None) -> int:
        """Return the private true number of people with ``min_rows`` rows that satisfy a predicate."""
        if min_rows is not None and self.source_table(slot).person is None:
            raise malformed_rejection(
                "min_rows: the source declares no person column, so each person has one row; count rows, or declare the column"
            )
        predicate = self.predicate(slot, where, field)
        return _reject_value_errors(field, lambda: self.table(slot).people_count(predicate, min_rows or 1))

    def total(self, slot: int, attribute: str, where: str | None, *, center: int = 0, field: str = "sum") -> int:
        """Return the private true sum of an attribute minus ``center`` for each row."""
        return _reject_value_errors(
            field, lambda: self.table(slot).total(attribute, self.predicate(slot, where), center)
        )

    def to_grid_steps(self, slot: int, number: int, attribute: str | None = None) -> float:
        """Convert a count, or the total of an attribute in its steps, to steps of the stream's grid."""
        steps = self.streams.terms_at(slot).steps_in_one
        if attribute is not None:
            steps *= self.numeric_domain(slot, attribute, "sum").unit
        return float(number if steps == 1 else number * steps)

    def require_row_counts(self, slot: int, field: str) -> None:
        """Refuse counts and sums of rows on a stream whose noise is planned for counts of people only."""
        if getattr(self.streams.terms_at(slot).mechanism, "people", False):
            raise malformed_rejection(
                f"{field}: the stream takes only counts of people; send people beside where, or open a stream without mechanism.people"
            )

    def require_planned_sum(self, slot: int, attribute: str, field: str = "sum") -> None:
        """Refuse a sum that the stream's noise was not planned for."""
        sums: tuple[str, ...] = getattr(self.streams.terms_at(slot).mechanism, "sums", ())
        if attribute not in sums:
            raise malformed_rejection(
                f"{field}: the stream was not opened for sums of this attribute; open one that names it in mechanism.sums"
            )

    def numeric_domain(self, slot: int, attribute: str, field: str) -> Numeric:
        """Return the declared range of an attribute of integers or decimals."""
        source = self.source_table(slot)
        if attribute in source.texts:
            raise malformed_rejection(f"{field}: {private_text_message(attribute)}")
        attributes = source.attributes
        domain = attributes.get(attribute)
        if not isinstance(domain, Numeric):
            numeric = [name for name, one in attributes.items() if isinstance(one, Numeric)]
            raise malformed_rejection(
                f"{field}: {describe_attribute(attribute, attributes)} is no attribute of integers or decimals; {list_declared(numeric)}"
                f"{suggest_name(attribute, numeric)}"
            )
        return domain

    def count_limit(self, slot: int) -> float | None:
        """Return the largest possible count, the number of rows; None if it is private."""
        rows = self.public_rows(slot)
        return None if rows is None else float(rows)

    def public_rows(self, slot: int) -> int | None:
        """Return the table's number of rows if it is public, because neighbors have the same number.

        If one row of each person counts, the result is the number of people plus the number of rows without
        a person. If several rows of a person count, the number of rows is private.
        """
        if not rows_are_public(self.source_table(slot)):
            return None
        self.await_tables((slot,))
        return self.table(slot).public_size


class TermsCache(Generic[Result]):
    """Values that depend on streams' terms alone, for a number of recent terms.

    ``build`` is a function and not a method, because a reference cycle would keep a closed partition's memory.
    """

    def __init__(self, context: Context, build: Callable[[Context, int], Result]) -> None:
        self._context = context
        self._build = build
        self._known: RecentCache[int, Result] = RecentCache(TERMS_CACHE_SIZE)

    def find(self, slot: int) -> Result:
        """Return the value for a stream's terms, from the cache or built again."""
        index = int(self._context.streams.columns.terms_of[slot])
        if (known := self._known.get(index)) is None:
            known = self._build(self._context, slot)
            self._known.put(index, known)
        return known


_UNBATCHED_FORMS: Final = ("people", "group_by", "person_sum", *STATISTICS)


def _list_measures(query: Any) -> Iterator[tuple[tuple[str | None, ...], str | None]]:
    """Yield the conditions of each count or sum of a question, with the summed attribute or None."""
    for part in (query, *(getattr(query, "candidates", None) or ())):
        if any(getattr(part, form, None) for form in _UNBATCHED_FORMS):
            continue
        where = getattr(part, "where", None)
        yield (where,), getattr(part, "sum", None) or getattr(part, "mean", None)
        if (rate := getattr(part, "rate", None)) is not None:
            yield (where, rate), None


def _require_kind(terms: Any, kind: type[Kind]) -> Kind:
    if not isinstance(terms, kind):
        raise TypeError(f"a stream of {kind.__name__} has terms of kind {terms.kind}")
    return terms


def _reject_value_errors(field: str, read: Callable[[], Result]) -> Result:
    """Call ``read``; raise Rejection about ``field`` if it raises ValueError."""
    try:
        return read()
    except ValueError as error:
        raise Rejection("predicate", f"{field}: {error}") from None


def describe_attribute(attribute: str, attributes: Container[str]) -> str:
    """Describe an attribute in a refusal; only declared attributes are named, because refusals are public."""
    return f"attribute {described(attribute)}" if attribute in attributes else "this name"


def list_declared(names: Collection[str]) -> str:
    """List declared names, as part of a refusal."""
    return f"declared are {quote_names(names)}" if names else "none is declared"


def suggest_name(attribute: str, names: Collection[str]) -> str:
    """Return the end of a refusal: a declared name that differs only in case, or an empty text."""
    found = None if attribute in names else find_name_in_other_case(attribute, names)
    return "" if found is None else f"; did you mean {described(found)}?"


_MECHANISMS_OF_FORM: Final = {
    **dict.fromkeys(("people", "people_groups", "person_sum"), "laplace"),
    **dict.fromkeys(("sum", "mean"), "laplace or pmw"),
}
"""The mechanisms over tables that answer a form that most mechanisms refuse."""


def require_form(query: Any, *allowed: str, takes_alpha: bool = False) -> str:
    """Return the query's form; Rejection if the mechanism does not take it."""
    if query.alpha is not None and not takes_alpha:
        raise malformed_rejection(
            "alpha: this stream takes no requested error; remove it, or ask a stream of laplace over a table, or of pmw with an "
            "estimate"
        )
    if query.max_price is not None and not takes_alpha:
        raise malformed_rejection(
            "max_price: all charged answers of this stream cost the same (see its plan); remove it, or ask a stream that takes "
            "an alpha"
        )
    try:
        form = form_of(query)
    except ValueError as error:
        raise malformed_rejection(str(error)) from None
    if form not in allowed:
        fields = {"count": "where", "groups": "group_by", "people_groups": "people with group_by"}
        wanted = ", ".join(fields.get(name, name) for name in allowed)
        other = _MECHANISMS_OF_FORM.get(form) if not {"count", "cells"}.isdisjoint(allowed) else None
        elsewhere = "" if other is None else f", or ask a stream of {other}"
        raise malformed_rejection(
            f"{fields.get(form, form)}: this stream's mechanism does not take it; send {wanted}{elsewhere}"
        )
    return form


def alpha_rejection(form: str) -> Rejection:
    """Build the refusal of an alpha for a question whose error depends on private numbers."""
    asked = {
        "mean": "a mean's error depends on how many rows it is over; ask for the sum and the count, each with its own alpha",
        "rate": "a rate's error depends on how many rows it is over; ask for both counts, each with its own alpha",
        "fraction": "a share's error depends on the number of rows, which is private; ask for the count, and the count of TRUE, each with its own alpha",
    }
    other = "the error of this question depends on private numbers; remove it, and read the interval of the answer"
    return malformed_rejection(f"alpha: {asked.get(form, other)}")


def wide_noise_rejection(field: str, charged: str) -> Rejection:
    """Build the refusal of a number whose noise would be too wide because of its (public) sensitivity."""
    return malformed_rejection(f"{field}: {samplers.wide_noise_message(charged)}")


def price_refusal(calibration: Calibration, parts: int, left: int, *, alpha: bool) -> Reply:
    """Build the refusal of a question whose price exceeds the rest of the grant; price and rest are public."""
    price = epsilon_of(calibration, parts)
    remedy = "with a larger alpha" if alpha else "with an alpha that costs less"
    text = f"{'alpha' if alpha else 'query'}: it costs ε = {price:.6g}, and ε = {epsilon_of(calibration, left, math.floor):.6g} is left"
    return Reply(
        charged=False, price=price, refusal=Rejection(PRICE, f"{text}; ask {remedy}, or open another stream")
    )


def max_price_parts(calibration: Calibration, query: Any) -> int | None:
    """Return the most parts that a question's ``max_price`` allows; None without ``max_price``."""
    limit = query.max_price
    if limit is None:
        return None
    if limit and not isinstance(limit, str) and has_gaussian_charges(calibration):
        raise malformed_rejection(
            "max_price: an answer with Gaussian noise has no separate ε; give a percentage, such as '10%'"
        )
    return parts_within(calibration, limit)


def max_price_refusal(
    calibration: Calibration, parts: int, max_parts: int, *, at_most: bool, opening: int = 0
) -> Reply:
    """Build the refusal of a question that may cost more than its ``max_price``; the cost is public.

    ``opening`` is the part of the price that pays for the stream's first measurements; 0 after its first answer.
    """
    price = shown_price(calibration, parts)
    if price is None:
        whole = calibration.cutoff * PARTS_PER_CHARGE
        cost, limit = f"{100 * parts / whole:.6g}% of the grant", f"{100 * max_parts / whole:.6g}%"
    else:
        cost, limit = f"ε = {price:.6g}", f"{epsilon_of(calibration, max_parts, math.floor):.5g}"
    verb = "may cost up to" if at_most else "costs"
    remedy = "with a larger alpha or a larger max_price"
    if opening:
        cost += ", as the first answer pays for the stream's first measurements"
        remedy = "with a larger max_price"
    refusal = Rejection(PRICE, f"max_price: the answer {verb} {cost}, and the limit is {limit}; ask {remedy}")
    return Reply(charged=False, price=price, refusal=refusal)


def read_text_counts(query: Any) -> tuple[TextGroups, bool]:
    """Return the private counts of a window's texts, and True if they are missing because they are too large."""
    require_form(query, "texts")
    try:
        found = decode_text_counts(query.texts)
    except ValueError as error:
        raise malformed_rejection(str(error)) from None
    texts = tuple(sorted(found or ()))
    counts = np.array([(found or {})[text] for text in texts], dtype=np.int64)
    return TextGroups(texts, None, counts), found is None
