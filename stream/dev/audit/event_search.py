"""The search for the event that tells two data sets apart best, on transcripts made for the search alone.

Whatever the search finds is tested on other runs, so that it may look as often and as hard as it likes. The best event
is a set of transcripts whose likelihood ratio exceeds some bound (the lemma of Neyman and Pearson); ratios are
estimated in three ways, of which each does best where another has too few runs to go by. Sources: Ding, Wang, Wang,
Zhang & Kifer, Detecting violations of differential privacy, CCS 2018; Bichsel, Steffen, Bogunovic & Vechev,
DP-Sniper, S&P 2021.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from stream.dev.audit.audit_cases import Transcript
from stream.privacy.accuracy.binomial import Floats, at_least, at_most


def epsilon_at_least(
    likely: npt.ArrayLike,
    unlikely: npt.ArrayLike,
    trials: int,
    *,
    delta: float,
    alpha: float,
) -> Floats:
    """A lower bound on ε from how often an event was seen under either of two neighbouring data sets.

    Every (ε, δ)-differentially private mechanism has P(E | D) ≤ e^ε P(E | D′) + δ. With each probability bounded at
    ``alpha``/2, ln((p − δ) / p′) is above the truth with probability at most ``alpha``. It is 0 where nothing was shown.

    Args:
        likely: how many of ``trials`` runs on D had the event; a number or an array.
        unlikely: how many of ``trials`` runs on D′ had it.
        trials: runs on each data set.
        delta: the δ that is claimed.
        alpha: the probability allowed for a bound above the truth.
    """
    excess = at_least(likely, trials, alpha / 2) - delta
    ratio = np.maximum(excess, 0.0) / at_most(unlikely, trials, alpha / 2)
    return np.log(np.maximum(ratio, 1.0))


MAX_NAMED = 2
"""How many of an event's transcripts its label names."""

Score = Callable[[Transcript], float]
"""An estimate of ln(P(transcript | D) / P(transcript | D′))."""

Samples = tuple[Sequence[Transcript], Sequence[Transcript]]
"""Transcripts of runs on D and of runs on D′."""


@dataclass(frozen=True)
class TranscriptEvent:
    """A set of transcripts, and the side (0 or 1) on which it is likelier."""

    contains: Callable[[Transcript], bool]
    likelier: int
    label: str

    def hits(self, samples: Samples) -> tuple[int, int]:
        """How many runs had it: on the side where it is likelier, then on the other."""
        found = [sum(map(self.contains, transcripts)) for transcripts in samples]
        return found[self.likelier], found[1 - self.likelier]


def search(samples: Samples, *, delta: float, alpha: float, trials: int) -> TranscriptEvent:
    """The event that promises the highest lower bound on ε when ``trials`` other runs per side test it at ``alpha``.

    Scores are learnt from the first half of the samples; score, direction and bound are chosen by the second half,
    which the scores have not seen.
    """
    learn, choose = _halves(samples)
    best, best_bound = TranscriptEvent(lambda _: True, 0, "every transcript"), -1.0
    for make in (_by_transcript, _by_counts, _by_place):
        score = make(learn)
        scored = [Counter(map(score, transcripts)) for transcripts in choose]
        values = sorted(set(scored[0]) | set(scored[1]), reverse=True)
        counts = [np.array([side[value] for value in values]) for side in scored]
        for likelier in (0, 1):
            # From above for D, from below for D′: either way the likeliest transcripts first.
            step = 1 if likelier == 0 else -1
            likely, unlikely = (np.cumsum(side[::step]) for side in (counts[likelier], counts[1 - likelier]))
            more = trials / len(choose[0])
            bounds = epsilon_at_least(
                np.minimum(likely * more, trials),
                np.minimum(unlikely * more, trials),
                trials,
                delta=delta,
                alpha=alpha,
            )
            place = int(np.argmax(bounds))
            if bounds[place] > best_bound:
                best_bound = float(bounds[place])
                best = _event(score, values[::step][place], likelier, choose)
    return best


def named(contains: Callable[[Transcript], bool], likelier: int, samples: Samples) -> TranscriptEvent:
    """An event with a label made of those of its transcripts that are commonest in some samples."""
    members = Counter(filter(contains, samples[likelier]))
    commonest = " or ".join(spelled(transcript) for transcript, _ in members.most_common(MAX_NAMED))
    more = len(members) - MAX_NAMED
    return TranscriptEvent(
        contains, likelier, f"{commonest} or {more} more" if more > 0 else commonest or "never seen"
    )


def _event(score: Score, bound: float, likelier: int, samples: Samples) -> TranscriptEvent:
    def contains(transcript: Transcript) -> bool:
        return score(transcript) >= bound if likelier == 0 else score(transcript) <= bound

    return named(contains, likelier, samples)


def spelled(transcript: Transcript) -> str:
    """A transcript for people; what is seen several times in a row stands there once, with how often."""
    runs = [(one, len(list(run))) for one, run in groupby(str(seen) for seen in transcript)]
    return " ".join(one if times == 1 else f"{one}×{times}" for one, times in runs)


def _halves(samples: Samples) -> tuple[Samples, Samples]:
    middle = len(samples[0]) // 2
    return (samples[0][:middle], samples[1][:middle]), (samples[0][middle:], samples[1][middle:])


def _by_transcript(samples: Samples) -> Score:
    """By how often the very transcript was seen; best for few and short ones."""
    ratio = _Ratio.learnt([list(transcripts) for transcripts in samples])
    return ratio.of


def _by_counts(samples: Samples) -> Score:
    """By how often each answer occurs in it, in whatever order; best for long ones of few different answers."""
    ratio = _Ratio.learnt([[_tally(transcript) for transcript in transcripts] for transcripts in samples])
    return lambda transcript: ratio.of(_tally(transcript))


def _by_place(samples: Samples) -> Score:
    """By each part of each answer as if they were independent of each other; best for many numbers.

    Parts that do not clearly differ are left out, lest many small errors of theirs drown the few that do.
    """
    ratio = _Ratio.learnt(
        [[part for t in transcripts for part in _parts(t)] for transcripts in samples], clear=2.5
    )
    return lambda transcript: math.fsum(ratio.of(part) for part in _parts(transcript))


def _tally(transcript: Transcript) -> Hashable:
    return frozenset(Counter(transcript).items())


def _parts(transcript: Transcript) -> list[Hashable]:
    parts: list[Hashable] = [("ends", len(transcript))]
    for place, seen in enumerate(transcript):
        parts.append((place, seen.outcome, seen.choice))
        parts += [(place, part, number) for part, number in enumerate(seen.numbers)]
    return parts


@dataclass(frozen=True)
class _Ratio:
    """Logarithms of ratios of frequencies; what was never seen is equally likely on both sides."""

    logarithms: dict[Hashable, float]

    @classmethod
    def learnt(cls, items: Sequence[Sequence[Hashable]], *, clear: float = 0.0) -> _Ratio:
        """Learn from items seen on either side; differences below ``clear`` standard deviations count as none."""
        one, other = (Counter(side) for side in items)
        return cls(
            {
                item: math.log((one[item] + 1) / (other[item] + 1))
                for item in one | other
                if (one[item] - other[item]) ** 2 >= clear**2 * (one[item] + other[item])
            },
        )

    def of(self, item: Hashable) -> float:
        return self.logarithms.get(item, 0.0)
