"""What families of mechanisms have in common.

A family resolves questions to what its mechanism needs (private numbers, public weights), and answers them in order.
Everything else is the processor's: positions, indices, charges, cutoffs, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from schemas import Calibration, Integers, TableSource, form_of
from stream.formatting import in_other_case
from stream.privacy.composition.costs import PARTS
from stream.privacy.noise import scales
from stream.privacy.planning.prices import (
    epsilon_left,
    epsilon_of,
    has_gaussian_charges,
    parts_within,
    shown_price,
)
from stream.processing.dead_letters import PRICE, Rejection
from stream.tables import Predicate, PrivateTable, TableStore, rows_are_public
from stream.tables.table_errors import listed
from stream.tables.table_errors import shown as described
from stream.worker.hosted_streams import HostedStreams
from stream.worker.mechanism_updates import Update
from stream.worker.stream_terms import About


@dataclass(frozen=True, slots=True)
class AdmittedQuestion:
    """One admitted question: its record's place in the batch, its stream's slot, and what the family made of it.

    ``about`` is which window and group asks, of a standing stream.
    """

    place: int
    id: str
    slot: int
    offset: int
    payload: bytes
    content: Any
    about: About | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What is published of one question; ``charged`` if it is paid for, with ``parts`` of an ordinary charged answer.

    ``price`` is the ε that is shown of a question with an alpha. With ``refusal`` it is not answered, and nothing changes.
    """

    charged: bool
    outcome: Literal["above", "below", "answer"] = "answer"
    estimate: float | None = None
    basis: str | None = None
    estimates: tuple[float, ...] | None = None
    choice: str | None = None
    alpha: float | None = None
    update: Update | None = None
    parts: int = PARTS
    price: float | None = None
    refusal: Rejection | None = None


class Family(Protocol):
    """One kind of mechanism, for all streams of a partition that run it."""

    def admit(self, slot: int, query: Any) -> Any:
        """Resolve a question (a query of the contract or its struct), or raise Rejection. Changes nothing."""

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions of open streams in order; None where the stream's charged answers are used up.

        ``streams.left`` says how many charged replies each stream may still give, at the start of the batch.
        """

    def resume(self, slot: int, updates: Sequence[Update]) -> None:
        """Take a stream's updates from the changelog, in order."""


def stream_by_stream(
    questions: Sequence[AdmittedQuestion], answer: Callable[[int, Sequence[AdmittedQuestion]], list[Reply | None]]
) -> list[Reply | None]:
    """The replies to questions of many streams; ``answer`` gives those to all of one slot's, in order."""
    places: dict[int, list[int]] = {}
    for place, one in enumerate(questions):
        places.setdefault(one.slot, []).append(place)
    replies: list[Reply | None] = [None] * len(questions)
    for slot, own in places.items():
        for place, reply in zip(own, answer(slot, [questions[place] for place in own]), strict=True):
            replies[place] = reply
    return replies


class TableLetGoError(Exception):
    """A stream that answers no more is over a table that is not in memory any more."""


class Stateless:
    """A family with nothing to resume: its streams' state is their number of charged answers."""

    def resume(self, slot: int, updates: Sequence[Update]) -> None:
        """There are no updates."""
        del slot, updates


@dataclass(frozen=True, slots=True)
class Context:
    """What families work with: the hosted streams, their tables, and where their queries come from."""

    streams: HostedStreams
    tables: TableStore
    topic: str
    partition: int

    def source_table(self, slot: int) -> TableSource:
        """The table source of a stream; Rejection where the source has no table."""
        source = self.streams.terms_at(slot).source
        if not isinstance(source, TableSource):
            raise Rejection("malformed", "where: this stream's source has no table; send a 'value' instead")
        return source

    def table(self, slot: int) -> PrivateTable:
        """The private table behind a stream; TableLetGoError of one that has ended, unless the table is at hand for others."""
        terms, source = self.streams.terms_at(slot), self.source_table(slot)
        if (known := self.tables.at_hand(source, terms.fingerprint)) is not None:
            return known
        if not self.streams.life.answers(slot):
            raise TableLetGoError
        try:
            return self.tables.get(source, terms.fingerprint, terms.version)
        except ValueError as error:
            raise Rejection("table", f"stream: {error}") from None

    def predicate(self, slot: int, where: str | None, field: str = "where") -> Predicate:
        """Parse a predicate; no predicate means all rows."""
        try:
            return self.tables.predicate(self.source_table(slot), "TRUE" if where is None else where)
        except ValueError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def count(self, slot: int, where: str | None, field: str = "where") -> int:
        """The true count of a predicate: private."""
        try:
            return self.table(slot).count(self.predicate(slot, where, field))
        except ValueError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def people(self, slot: int, where: str | None, field: str = "where") -> int:
        """How many people truly have a row that satisfies a predicate: private."""
        try:
            return self.table(slot).people_count(self.predicate(slot, where, field))
        except ValueError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def total(self, slot: int, attribute: str, where: str | None, *, centre: int = 0, field: str = "sum") -> int:
        """The true sum of an attribute, less ``centre`` for each row: private."""
        try:
            return self.table(slot).total(attribute, self.predicate(slot, where), centre)
        except ValueError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def allow_rows(self, slot: int, field: str) -> None:
        """Refuse what rows add up to, of a stream whose noise was planned for people alone."""
        if getattr(self.streams.terms_at(slot).mechanism, "people", False):
            raise Rejection(
                "malformed",
                f"{field}: the stream takes counts of people alone; send people beside where, or open one without mechanism.people",
            )

    def allow_sum(self, slot: int, attribute: str, field: str = "sum") -> None:
        """Refuse a sum that the stream's noise was not planned for."""
        sums: tuple[str, ...] = getattr(self.streams.terms_at(slot).mechanism, "sums", ())
        if attribute not in sums:
            raise Rejection(
                "malformed",
                f"{field}: the stream was not opened for sums of this attribute; open one with mechanism.sums naming it",
            )

    def integers(self, slot: int, attribute: str, field: str) -> Integers:
        """The declared range of an attribute that can be summed up."""
        attributes = self.source_table(slot).attributes
        domain = attributes.get(attribute)
        if not isinstance(domain, Integers):
            integers = [name for name, one in attributes.items() if isinstance(one, Integers)]
            raise Rejection(
                "malformed",
                f"{field}: {named(attribute, attributes)} is no attribute of integers; {declared(integers)}"
                f"{meant(attribute, integers)}",
            )
        return domain

    def public_rows(self, slot: int) -> int | None:
        """The number of rows of the file where it is public: neighbours replace a row and keep the number.

        How many of them the domains' rules leave out stays private. Where rows have persons it is the number of people and of rows
        without a name, if one row of each counts; of several rows a person nobody may know how many there are.
        """
        source = self.source_table(slot)
        return self.table(slot).public_size if rows_are_public(source) else None


def named(attribute: str, attributes: Container[str]) -> str:
    """What a question's attribute is called in a refusal, which is public: by its name if it is declared."""
    return f"attribute {described(attribute)}" if attribute in attributes else "what is named"


def declared(names: Collection[str]) -> str:
    """What can be named instead, of declared names."""
    return f"declared are {listed(names)}" if names else "none is declared"


def meant(attribute: str, names: Collection[str]) -> str:
    """The end of a refusal: the declared name that differs in the case of letters alone, if there is one."""
    found = None if attribute in names else in_other_case(attribute, names)
    return "" if found is None else f"; did you mean {described(found)}?"


def form_for(query: Any, *allowed: str, takes_alpha: bool = False) -> str:
    """The query's form, if the mechanism takes it; Rejection otherwise."""
    if query.alpha is not None and not takes_alpha:
        raise Rejection(
            "malformed",
            "alpha: this stream takes none; ask one of laplace over a table, or of pmw that is planned neither for the worst "
            "case nor by the textbook, or remove it",
        )
    if query.max_price is not None and not takes_alpha:
        raise Rejection(
            "malformed",
            "max_price: all charged answers of this stream cost the same, which its plan says; remove it, or ask a stream that takes "
            "an alpha",
        )
    try:
        form = form_of(query)
    except ValueError as error:
        raise Rejection("malformed", str(error)) from None
    if form not in allowed:
        fields = {"count": "where", "groups": "group_by"}
        wanted = ", ".join(fields.get(name, name) for name in allowed)
        raise Rejection(
            "malformed", f"{fields.get(form, form)}: this stream's mechanism does not take it; send {wanted}"
        )
    return form


def no_alpha_for(form: str) -> Rejection:
    """The refusal of an alpha for a quotient of two private numbers, whose error depends on how large they are."""
    asked = "a mean's error depends on how many rows it is over; ask for the sum and the count"
    if form == "fraction":
        asked = (
            "a share's error depends on the number of rows, which is private; ask for the count, and that of TRUE"
        )
    return Rejection("malformed", f"alpha: {asked}, each with an alpha of its own")


def too_wide(field: str, charged: str) -> Rejection:
    """The refusal of a number that one person moves further than the noise of its stream can hide. That is public."""
    return Rejection("malformed", f"{field}: {scales.too_wide(charged)}")


def too_dear(calibration: Calibration, parts: int, left: int, *, alpha: bool) -> Reply:
    """The refusal of a question that the rest of a grant does not pay for. Price and rest are public."""
    price = epsilon_of(calibration, parts)
    remedy = "with a larger alpha" if alpha else "with an alpha that costs less"
    told = f"{'alpha' if alpha else 'query'}: it costs ε = {price:.6g}, and ε = {epsilon_left(calibration, left):.6g} is left"
    return Reply(
        charged=False, price=price, refusal=Rejection(PRICE, f"{told}; ask {remedy}, or open another stream")
    )


def most_parts(calibration: Calibration, query: Any) -> int | None:
    """The most parts that a question lets its answer be charged, if it says so. That is public."""
    limit = query.max_price
    if limit is None:
        return None
    if limit and not isinstance(limit, str) and has_gaussian_charges(calibration):
        raise Rejection("malformed", "max_price: Gaussian noise has no ε of its own; give a percentage, as '10%'")
    return parts_within(calibration, limit)


def above_limit(calibration: Calibration, parts: int, most: int, *, at_most: bool) -> Reply:
    """The refusal of a question that may be charged more than it lets it be. All of that is public."""
    price = shown_price(calibration, parts)
    if price is None:
        whole = calibration.cutoff * PARTS
        told, limit = f"{100 * parts / whole:.6g}% of the grant", f"{100 * most / whole:.6g}%"
    else:
        told, limit = f"ε = {price:.6g}", f"{epsilon_left(calibration, most):.6g}"
    verb = "may cost up to" if at_most else "costs"
    return Reply(
        charged=False,
        price=price,
        refusal=Rejection(
            PRICE,
            f"max_price: the answer {verb} {told}, and the limit is {limit}; ask with a larger alpha or a larger max_price",
        ),
    )


def on_values(streams: HostedStreams, slot: int) -> bool:
    """Whether a stream's queries carry trusted values."""
    return streams.terms_at(slot).trusts_values


def within_grants(streams: HostedStreams, questions: Sequence[AdmittedQuestion]) -> list[bool]:
    """Which questions their streams can still pay for, where every answer is charged."""
    left: dict[int, int] = {}
    paid = []
    for one in questions:
        rest = left.get(one.slot)
        if rest is None:
            rest = streams.left(one.slot)
        paid.append(rest > 0)
        left[one.slot] = rest - 1
    return paid
