"""Exact laws of the shipped noise, and the exact privacy loss of mechanisms with this noise.

Probabilities are integers out of 2^192, rounded down; ``Outcomes.slack`` bounds how far below the truth they may be.
What is claimed of a divergence is therefore proved by integer arithmetic, not estimated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, cached_property, lru_cache, reduce
from itertools import accumulate, product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import SparseVectorCalibration
from stream.privacy.mechanisms.above_threshold import answer_sampler, query_sampler, threshold_sampler
from stream.privacy.mechanisms.selection import RankLaw
from stream.privacy.noise.samplers import (
    STRETCH,
    TABLE_BITS,
    Gaussian,
    Geometric,
    Sampler,
    cumulative_probabilities,
)

Exact = npt.NDArray[np.object_]
"""Python integers, for arithmetic without rounding."""

Move = tuple[int, int]
"""One query's distance from the threshold under either neighbor."""

BITS = 192
UNIT = 1 << BITS
DIGIT_BITS = 128


@lru_cache(maxsize=1024)
def exponential_below(exponent: Fraction) -> Fraction:
    """Return a rational number that is at most e^exponent, and nearer to it than one part in 10^57."""
    with localcontext(prec=60):
        # Both the quotient and ``exp`` are correctly rounded; two units in the last place make up for it.
        quotient = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).next_minus()
        return Fraction(quotient.exp().next_minus())


@dataclass(frozen=True)
class Law:
    """A distribution on the integers: ``weights[i]`` out of 2^``bits`` is the probability of ``first + i``."""

    first: int
    weights: tuple[int, ...]
    bits: int

    @property
    def last(self) -> int:
        return self.first + len(self.weights) - 1

    def probability(self, value: int) -> Fraction:
        inside = self.first <= value <= self.last
        return Fraction(self.weights[value - self.first] if inside else 0, 1 << self.bits)

    def at_least(self, value: int) -> int:
        """P(X >= value), out of 2^``bits``."""
        return self._tails[min(max(value - self.first, 0), len(self.weights))]

    @cached_property
    def _tails(self) -> tuple[int, ...]:
        return (*list(accumulate(reversed(self.weights)))[::-1], 0)


NO_NOISE = Law(first=0, weights=(1,), bits=0)


@lru_cache(maxsize=256)
def law_of(sampler: Sampler) -> Law:
    """Return the exact law of a sampler, which follows from its own fixed-point digit probabilities."""
    one = 1 << DIGIT_BITS
    if isinstance(sampler, Gaussian):
        return _gaussian_law(sampler)
    if isinstance(sampler, Geometric):
        weights = [1]
        for p in sampler.probabilities:
            weights = [w * (one - p) for w in weights] + [w * p for w in weights]
        return Law(first=0, weights=tuple(weights), bits=DIGIT_BITS * sampler.digits)
    # The digits of the two parts differ by −1, 0 or 1, independently of the other digits.
    signed = np.array([1], dtype=object)
    for digit, p in enumerate(sampler.one_sided.probabilities):
        step = 1 << digit
        spread = np.zeros(len(signed) + 2 * step, dtype=object)
        unequal, equal = p * (one - p), p * p + (one - p) ** 2
        spread[: len(signed)] += signed * unequal
        spread[step : step + len(signed)] += signed * equal
        spread[2 * step :] += signed * unequal
        signed = spread
    return Law(
        first=1 - (1 << sampler.one_sided.digits),
        weights=tuple(signed),
        bits=2 * DIGIT_BITS * sampler.one_sided.digits,
    )


def _gaussian_law(gaussian: Gaussian) -> Law:
    """Return the law of the sum of its draws; each has a fair sign, and a size with the shipped cumulative probabilities."""
    weights = np.array([1], dtype=object)
    for variance in reversed(gaussian.levels):
        sums = (*cumulative_probabilities(variance), 1 << TABLE_BITS)
        sizes = [2 * sums[0], *(after - before for before, after in itertools.pairwise(sums))]
        part = np.array(sizes[:0:-1] + sizes, dtype=object)
        apart = np.zeros(STRETCH * (len(weights) - 1) + 1, dtype=object)
        apart[::STRETCH] = weights
        weights = np.zeros(len(apart) + len(part) - 1, dtype=object)
        for place in np.flatnonzero(apart):
            weights[place : place + len(part)] += apart[place] * part
    return Law(first=-(len(weights) // 2), weights=tuple(weights), bits=DIGIT_BITS * len(gaussian.levels))


class Outcome(NamedTuple):
    """The published outcome of one query; ``value`` is a number released with it."""

    above: bool
    value: int | None = None

    def __repr__(self) -> str:
        return ("⊤" if self.above else "⊥") + ("" if self.value is None else f"={self.value}")


BELOW, ABOVE = Outcome(above=False), Outcome(above=True)

Transcript = tuple[Outcome, ...]


@dataclass(frozen=True)
class Machine:
    """A mechanism, correct or broken, that compares noisy values with a noisy threshold.

    A query is ⊤ iff f − T + ν >= ρ + ``shift``. ``renewed`` says when ρ is drawn again; the stream ends after ``cutoff``
    ⊤s (None: never). With ``released``, a ⊤ has a number, and ``numbers`` tells which: the compared f − T + ν if it is one
    of the listed values; the ``gap`` f − T + ν − ρ − ``shift``; or ``fresh``, f − T + η with η drawn from ``answer``. Gaps
    and fresh numbers beyond an end of the list are shown as that end.
    """

    threshold: Law
    query: Law
    shift: int = 0
    cutoff: int | None = None
    renewed: Literal["never", "after ⊤", "each query"] = "never"
    released: tuple[int, ...] = ()
    numbers: Literal["compared", "gap", "fresh"] = "compared"
    answer: Law = NO_NOISE

    @classmethod
    def shipped(cls, calibration: SparseVectorCalibration, released: Iterable[int] = ()) -> Machine:
        """Return AboveThreshold, or NumericSparse if values are ``released``, with the laws of the shipped code."""
        return cls(
            threshold=law_of(threshold_sampler(calibration)),
            query=law_of(query_sampler(calibration)),
            shift=calibration.shift,
            cutoff=calibration.cutoff,
            renewed="after ⊤" if calibration.fresh_threshold else "never",
            released=tuple(released),
            numbers="compared" if calibration.numbers == "none" else calibration.numbers,
            answer=law_of(answer_sampler(calibration)) if calibration.numbers == "fresh" else NO_NOISE,
        )

    @property
    def alphabet(self) -> tuple[Outcome, ...]:
        return (BELOW, *([Outcome(above=True, value=v) for v in self.released] or [ABOVE]))

    def ends(self, transcript: Transcript) -> bool:
        return self.cutoff is not None and sum(outcome.above for outcome in transcript) >= self.cutoff

    def renews(self, outcome: Outcome) -> bool:
        return self.renewed == "each query" or (self.renewed == "after ⊤" and outcome.above)

    def prior(self) -> Exact:
        """P(ρ), over the support of ρ."""
        return np.array([_scaled(w, self.threshold.bits) for w in self.threshold.weights], dtype=object)

    def likelihood(self, outcome: Outcome, margin: int) -> Exact:
        """P(outcome | ρ), over the support of ρ, for a query at this distance from the threshold."""
        barriers = range(self.threshold.first + self.shift, self.threshold.last + self.shift + 1)
        law = self.query
        if outcome.value is not None and self.numbers == "gap":
            gaps = [self._at(law, outcome.value + barrier - margin, outcome.value) for barrier in barriers]
            return np.array([_scaled(weight, law.bits) for weight in gaps], dtype=object)
        if outcome.value is not None and self.numbers == "fresh":
            number = _scaled(self._at(self.answer, outcome.value - margin, outcome.value), self.answer.bits)
            shown: Exact = (self.likelihood(ABOVE, margin) * number) >> BITS
            return shown
        if outcome.value is not None:
            released = law.probability(outcome.value - margin)
            passing = _scaled(released.numerator, released.denominator.bit_length() - 1)
            return np.array([passing if outcome.value >= barrier else 0 for barrier in barriers], dtype=object)
        tails = [law.at_least(barrier - margin) for barrier in barriers]
        chosen = tails if outcome.above else [(1 << law.bits) - tail for tail in tails]
        return np.array([_scaled(weight, law.bits) for weight in chosen], dtype=object)

    def _at(self, law: Law, value: int, shown: int) -> int:
        """Return the weight of noise equal to ``value``, or beyond it if ``shown`` is an end of the released numbers."""
        least = law.at_least(value)
        if self.numbers == "fresh" and shown == self.released[0]:
            return (1 << law.bits) - law.at_least(value + 1)
        return least if shown == self.released[-1] else least - law.at_least(value + 1)


def _scaled(weight: int, bits: int) -> int:
    return weight >> (bits - BITS) if bits >= BITS else weight << (BITS - bits)


@dataclass(frozen=True)
class Outcomes:
    """P(transcript | margins) for every complete transcript and all margins, at most ``slack`` below the truth.

    ``of[t]`` has one axis per query that ``t`` answers, in the order of ``margins``.
    """

    of: dict[Transcript, Exact]
    margins: tuple[int, ...]
    slack: int

    def gather(self, transcript: Transcript, margins: Sequence[int]) -> Exact:
        """Return the probabilities for queries whose margins are all in the lists."""
        index = [self.margins.index(margin) for margin in margins]
        table = self.of[transcript]
        return table[np.ix_(*[index] * table.ndim)]

    def probability(self, transcript: Transcript, margins: Sequence[int]) -> int:
        index = tuple(self.margins.index(margin) for margin in margins[: len(transcript)])
        return int(self.of[transcript][index])


def outcomes(machine: Machine, margins: Iterable[int], queries: int) -> Outcomes:
    """Run a machine on all streams of so many queries with margins from the given ones."""
    choices = tuple(sorted(set(margins)))
    alphabet = tuple(machine.alphabet)
    # A table by a number for each pair of outcome and margin.
    likelihoods = [machine.likelihood(outcome, margin) for outcome in alphabet for margin in choices]
    prior = machine.prior()
    found: dict[Transcript, Exact] = {}

    @cache
    def given(seen: tuple[int, ...]) -> Exact:
        """Return P(all of these outcomes, and each ρ), which does not depend on their order."""
        return (given(seen[:-1]) * likelihoods[seen[-1]]) >> BITS if seen else prior

    @cache
    def chance(seen: tuple[int, ...]) -> int:
        return int(given(seen).sum())

    def table(transcript: Transcript) -> Exact:
        """P(transcript | margins): each ρ has a stretch of the queries, and the stretches are independent."""
        ends = [place + 1 for place, outcome in enumerate(transcript) if machine.renews(outcome)]
        stretches = [slice(*two) for two in itertools.pairwise(sorted({0, *ends, len(transcript)}))]
        firsts = [len(choices) * alphabet.index(outcome) for outcome in transcript]
        filled = np.empty(len(choices) ** len(transcript), dtype=object)
        for number, seen in enumerate(product(*(range(first, first + len(choices)) for first in firsts))):
            chances = [chance(tuple(sorted(seen[stretch]))) for stretch in stretches]
            filled[number] = reduce(lambda one, other: (one * other) >> BITS, chances)
        return filled.reshape((len(choices),) * len(transcript))

    def walk(transcript: Transcript) -> None:
        for outcome in alphabet:
            longer = (*transcript, outcome)
            if len(longer) == queries or machine.ends(longer):
                found[longer] = table(longer)
            else:
                walk(longer)

    walk(())
    # Each query rounds at most four times per value of ρ: the factor, that of a fresh number, the product, and the
    # prior where ρ is renewed.
    return Outcomes(of=found, margins=choices, slack=4 * len(prior) * (queries + 1))


def find_neighbors(
    margins: Iterable[int], steps: int, direction: Literal["any", "up", "down"] = "any"
) -> list[Move]:
    """Return all moves of at most so many steps within a range of margins."""
    choices = sorted(set(margins))
    moves = [(a, b) for a in choices for b in choices if abs(a - b) <= steps]
    allowed: dict[str, Callable[[Move], bool]] = {
        "any": lambda _: True,
        "up": lambda move: move[0] <= move[1],
        "down": lambda move: move[0] >= move[1],
    }
    return list(filter(allowed[direction], moves))


def worst_delta(outcomes: Outcomes, moves: Sequence[Move], loss: Callable[[Transcript], Fraction]) -> Fraction:
    """An upper bound, tight to 2^-160, on Σ_t max(0, P(t | f) − e^loss(t) P(t | f′)) against any adaptive asker.

    The asker picks every query's move after seeing all earlier outcomes, and may stop at any point. For a constant
    loss ε this is the least δ for which the machine is (ε, δ)-differentially private on such streams.
    """
    left, right = [a for a, _ in moves], [b for _, b in moves]
    alphabet = sorted({outcome for transcript in outcomes.of for outcome in transcript})

    def excess(transcript: Transcript, ours: Exact, theirs: Exact) -> Exact:
        factor = int(exponential_below(loss(transcript)) * UNIT)
        # A sum over longer transcripts may lack one slack for each of them.
        slack = outcomes.slack * len(outcomes.of)
        above: Exact = (((ours + slack) << BITS) - factor * theirs) >> BITS
        clipped: Exact = np.maximum(above + 1, 0)
        return clipped

    def play(transcript: Transcript) -> tuple[Exact, Exact, Exact]:
        """Return the value of the game from here on, and P(transcript) under either neighbor, by the moves so far."""
        if transcript in outcomes.of:
            ours, theirs = outcomes.gather(transcript, left), outcomes.gather(transcript, right)
            return excess(transcript, ours, theirs), ours, theirs
        games = [play((*transcript, outcome)) for outcome in alphabet]
        # For any next query, the probabilities of its outcomes add up to the probability of the transcript so far.
        value, ours, theirs = (reduce(np.add, parts) for parts in zip(*games, strict=True))
        ours, theirs, going_on = ours[..., 0], theirs[..., 0], np.max(value, axis=-1)
        if not transcript:
            return going_on, ours, theirs
        return np.maximum(going_on, excess(transcript, ours, theirs)), ours, theirs

    return Fraction(int(play(())[0]), UNIT)


class WorstCase(NamedTuple):
    """The transcript with the largest loss, with the margins of both neighbors."""

    loss: float
    transcript: Transcript
    margins: tuple[int, ...]
    others: tuple[int, ...]
    probability: float


def worst_loss(outcomes: Outcomes, moves: Sequence[Move], least: float = 2.0**-40) -> WorstCase:
    """Return the largest ln P(t | f) / P(t | f′) of a transcript whose probability is at least ``least``.

    Far rarer ones show only the noise's cut tail. Exact but for the rounding of the final logarithm to a double.
    """
    left, right = [a for a, _ in moves], [b for _, b in moves]
    found = WorstCase(-math.inf, (), (), (), 0.0)
    for transcript in outcomes.of:
        ours = outcomes.gather(transcript, left).astype(np.float64) / UNIT
        theirs = outcomes.gather(transcript, right).astype(np.float64) / UNIT
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.where(ours >= least, np.log(ours) - np.log(theirs), -np.inf)
        index = np.unravel_index(int(np.argmax(losses)), losses.shape)
        if losses[index] > found.loss:
            chosen = [moves[int(i)] for i in index]
            margins, others = tuple(a for a, _ in chosen), tuple(b for _, b in chosen)
            found = WorstCase(float(losses[index]), transcript, margins, others, float(ours[index]))
    return found


def code_weights(counts: npt.NDArray[np.int64], law: RankLaw) -> list[int]:
    """The weight with which each code of a quantile is drawn."""
    places, weight_list = law.weight_positions(counts)
    return [weight_list[place] for place in places.tolist()]
