"""Searches for the event that best distinguishes two data sets.

The event is tested on other runs, so the search needs no correction for multiple tests. The best event
is a set of transcripts whose likelihood ratio exceeds a bound (lemma of Neyman and Pearson). Ratios
are estimated in three ways, which suit different kinds of transcripts. Sources: Ding, Wang, Wang, Zhang &
Kifer, Detecting violations of differential privacy, CCS 2018; Bichsel, Steffen, Bogunovic & Vechev,
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

from stream.dev.audit_cases import Transcript
from stream.privacy.accuracy.noise_laws import clopper_pearson_lower, clopper_pearson_upper


def epsilon_at_least(
    hits_on_first: npt.ArrayLike,
    hits_on_second: npt.ArrayLike,
    trials: int,
    *,
    delta: float,
    error_probability: float,
) -> npt.NDArray[np.float64]:
    """Return a lower bound on ε from the frequencies of an event on two neighboring data sets.

    Every (ε, δ)-differentially private mechanism has P(E | D) ≤ e^ε P(E | D′) + δ. If p bounds P(E | D)
    from below and p′ bounds P(E | D′) from above, each wrong with probability ``error_probability``/2, then
    ln((p − δ) / p′) exceeds ε with probability at most ``error_probability``.

    Args:
        hits_on_first: number of runs on D with the event; a number or an array.
        hits_on_second: number of runs on D′ with the event.
        trials: runs on each data set.
        delta: the claimed δ.
        error_probability: the probability of a bound above the true ε.
    """
    excess = clopper_pearson_lower(hits_on_first, trials, error_probability / 2) - delta
    ratio = np.maximum(excess, 0.0) / clopper_pearson_upper(hits_on_second, trials, error_probability / 2)
    return np.log(np.maximum(ratio, 1.0))


MAX_LABEL_TRANSCRIPTS = 2
"""Maximum number of transcripts that an event's label lists."""

Score = Callable[[Transcript], float]
"""An estimate of ln(P(transcript | D) / P(transcript | D′))."""

Samples = tuple[Sequence[Transcript], Sequence[Transcript]]
"""Transcripts of runs on D and of runs on D′."""


@dataclass(frozen=True)
class TranscriptEvent:
    """A set of transcripts, and the side (0 or 1) on which it is more likely."""

    contains: Callable[[Transcript], bool]
    likelier_side: int
    label: str

    def hits(self, samples: Samples) -> tuple[int, int]:
        """Return the numbers of runs with the event: on the more likely side, then on the other."""
        found = [sum(map(self.contains, transcripts)) for transcripts in samples]
        return found[self.likelier_side], found[1 - self.likelier_side]


def search_event(samples: Samples, *, delta: float, error_probability: float, trials: int) -> TranscriptEvent:
    """Return the event with the highest expected bound on ε in a test with ``trials`` other runs.

    The first half of the samples trains the scores; the second half selects the score, its direction and its bound.
    """
    training, selection = split_samples(samples)
    best, best_bound = TranscriptEvent(lambda _: True, 0, "every transcript"), -1.0
    for make_score in (_by_transcript, _by_counts, _by_position):
        score = make_score(training)
        scored = [Counter(map(score, transcripts)) for transcripts in selection]
        values = sorted(set(scored[0]) | set(scored[1]), reverse=True)
        counts = [np.array([side[value] for value in values]) for side in scored]
        for likelier_side in (0, 1):
            # Descending for D, ascending for D′, so that the likeliest transcripts come first.
            step = 1 if likelier_side == 0 else -1
            hits_on_first, hits_on_second = (
                np.cumsum(side[::step]) for side in (counts[likelier_side], counts[1 - likelier_side])
            )
            scale = trials / len(selection[0])
            bounds = epsilon_at_least(
                np.minimum(hits_on_first * scale, trials),
                np.minimum(hits_on_second * scale, trials),
                trials,
                delta=delta,
                error_probability=error_probability,
            )
            index = int(np.argmax(bounds))
            if bounds[index] > best_bound:
                best_bound = float(bounds[index])
                best = _event(score, values[::step][index], likelier_side, selection)
    return best


def label_event(contains: Callable[[Transcript], bool], likelier_side: int, samples: Samples) -> TranscriptEvent:
    """Build an event whose label has its most common transcripts in the samples."""
    members = Counter(filter(contains, samples[likelier_side]))
    commonest = " or ".join(
        format_transcript(transcript) for transcript, _ in members.most_common(MAX_LABEL_TRANSCRIPTS)
    )
    more = len(members) - MAX_LABEL_TRANSCRIPTS
    return TranscriptEvent(
        contains, likelier_side, f"{commonest} or {more} more" if more > 0 else commonest or "never seen"
    )


def _event(score: Score, bound: float, likelier_side: int, samples: Samples) -> TranscriptEvent:
    def contains(transcript: Transcript) -> bool:
        return score(transcript) >= bound if likelier_side == 0 else score(transcript) <= bound

    return label_event(contains, likelier_side, samples)


def format_transcript(transcript: Transcript) -> str:
    """Format a transcript; repeated answers appear once with their number."""
    runs = [(one, len(list(run))) for one, run in groupby(str(seen) for seen in transcript)]
    return " ".join(one if times == 1 else f"{one}×{times}" for one, times in runs)


def split_samples(samples: Samples) -> tuple[Samples, Samples]:
    """Return the first and the second half of the runs of each side."""
    middle = len(samples[0]) // 2
    return (samples[0][:middle], samples[1][:middle]), (samples[0][middle:], samples[1][middle:])


def _by_transcript(samples: Samples) -> Score:
    """Score by the frequency of the whole transcript; this is best if there are few and short transcripts."""
    ratios = _estimate_ratios(samples)
    return lambda transcript: ratios.get(transcript, 0.0)


def _by_counts(samples: Samples) -> Score:
    """Score by the counts of answers in any order; this is best for long transcripts of few different answers."""
    ratios = _estimate_ratios([list(map(_count_answers, transcripts)) for transcripts in samples])
    return lambda transcript: ratios.get(_count_answers(transcript), 0.0)


def _by_position(samples: Samples) -> Score:
    """Score each answer of a transcript separately, as if they were independent.

    This is best for transcripts with many numbers. Items whose frequencies do not differ clearly are
    ignored, because their errors would add up.
    """
    ratios = _estimate_ratios(
        [[part for t in transcripts for part in _parts(t)] for transcripts in samples], min_deviations=2.5
    )
    return lambda transcript: math.fsum(ratios.get(part, 0.0) for part in _parts(transcript))


def _count_answers(transcript: Transcript) -> Hashable:
    return frozenset(Counter(transcript).items())


def _parts(transcript: Transcript) -> list[Hashable]:
    parts: list[Hashable] = [("ends", len(transcript))]
    for index, seen in enumerate(transcript):
        parts.append((index, seen.outcome, seen.choice))
        parts += [(index, part, number) for part, number in enumerate(seen.numbers)]
    return parts


def _estimate_ratios(items: Sequence[Sequence[Hashable]], *, min_deviations: float = 0.0) -> dict[Hashable, float]:
    """Return the logarithm of the ratio of each item's frequencies on both sides.

    Items are left out if their counts differ by less than ``min_deviations`` standard deviations.
    """
    first, second = (Counter(side) for side in items)
    return {
        item: math.log((first[item] + 1) / (second[item] + 1))
        for item in first | second
        if (first[item] - second[item]) ** 2 >= min_deviations**2 * (first[item] + second[item])
    }
