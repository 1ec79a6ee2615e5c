"""The protocol of families of mechanisms, and the refusals that several families build.

A family resolves questions to its mechanism's inputs (private numbers, public weights) and answers
the questions in order. The processor keeps positions, indices, charges, cutoffs and checkpoints.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import numpy as np

from schemas import Calibration, Interval, TextInterval, form_of
from schemas.queries import Group
from stream.caches import BoundedCache
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.composition.losses import has_gaussian_charges
from stream.privacy.mechanisms.private_values import decode_text_counts
from stream.privacy.noise import samplers
from stream.privacy.planning.plans import epsilon_of, parts_within, shown_price
from stream.processing.dead_letters import PRICE, Rejection, malformed_rejection
from stream.tables.texts import TextGroups
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.stream_records import Update, decode_update, encode_update


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
        limit = f"{Decimal(f'{epsilon_of(calibration, max_parts, math.floor):.4g}'):f}"
        cost = f"ε = {Decimal(f'{price:.6g}'):f}"
    verb = "may cost up to" if at_most else "costs"
    # A larger alpha lowers neither the price of the first measurements nor that of an answer with Gaussian noise.
    remedy = "with a larger max_price" if opening or price is None else "with a larger alpha or a larger max_price"
    if opening:
        cost += ", as the first answer pays for the stream's first measurements"
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
