"""Broken variants of the sparse vector technique: each replaces one part of the real processors.

Each variant replaces a function or class in all modules of the product; the product itself has no hook for this. Lyu, Su &
Li 2017 ("LSL") number the published variants.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from msgspec.structs import replace

from stream.budget import openings
from stream.kernel.byte_columns import Spans
from stream.privacy.mechanisms import selection
from stream.privacy.mechanisms.above_threshold import ABOVE, query_sampler, threshold_sampler
from stream.privacy.mechanisms.private_values import Grid
from stream.privacy.mechanisms.releases import release_groups, release_keys
from stream.privacy.mechanisms.selection import ExponentialWeights, weights_for
from stream.privacy.noise.keyed_noise import DrawRole, event_words, stream_subkey, stream_subkeys
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import IntegerArray, LowWords, Sampler, Words, gaussian, sampler
from stream.privacy.planning.release_plans import node_name
from stream.privacy.planning.unknown_groups_plans import CERTAIN
from stream.worker.families import window_families
from stream.worker.families.estimate_family import _KeyedMeasurements
from stream.worker.families.hypothesis_family import _KeyedNoise
from stream.worker.families.sparse_vector_family import PublishedNumber, SparseVectorFamily
from stream.worker.hosted_streams import LifeCycle
from stream.worker.worker_processor import QueryProcessor

NO_NOISE = Fraction(200)
"""The rate of noise that is 0 in every draw except with probability e^-200."""


class Surgery:
    """Replaces parts of the product during one test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def exchange(self, part: Any, other: Any) -> None:
        """Put ``other`` in place of ``part`` in all modules of the product that import it."""
        product = [module for name, module in list(sys.modules.items()) if name.startswith("stream.")]
        places = [(module, name) for module in product for name, value in vars(module).items() if value is part]
        assert len({module.__name__ for module, _ in places}) > 1, f"nothing uses {part} any more"
        for module, name in places:
            self.patch.setattr(module, name, other)

    def noise(self, threshold: Callable[[Any], Fraction], query: Callable[[Any], Fraction]) -> None:
        """Draw both noises from two-sided laws; the rates are functions of the calibration."""
        self.exchange(threshold_sampler, lambda calibration: sampler("two_sided", threshold(calibration)))
        self.exchange(query_sampler, lambda calibration: sampler("two_sided", query(calibration)))


Variant = Callable[[Surgery], None]


@contextmanager
def broken(variant: Variant) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        variant(Surgery(patch))
        yield


def _epsilon(calibration: Any) -> Fraction:
    return Fraction(calibration.epsilon)


def query_noise_released(surgery: Surgery) -> None:
    """The noise of the comparison is used again as the noise of the answer: ⊤ is published with f + ν."""

    def compared_by(_: Any, batch: Any, compared: Any, decisions: Any) -> dict[int, PublishedNumber]:
        tops = np.flatnonzero(decisions.outcomes == ABOVE)
        places, margins = batch.rows.places[tops].tolist(), compared.margins[tops].tolist()
        return {
            place: PublishedNumber(float(one), "fresh", 1.0) for place, one in zip(places, margins, strict=True)
        }

    surgery.patch.setattr(SparseVectorFamily, "_published_numbers", compared_by)


def lsl_3(surgery: Surgery) -> None:
    """Releases f + ν, with ρ ~ Lap(2/ε) and ν ~ Lap(2c/ε)."""
    surgery.noise(lambda c: _epsilon(c) / 2, lambda c: _epsilon(c) / (2 * c.cutoff))
    query_noise_released(surgery)


def lsl_4(surgery: Surgery) -> None:
    """The query noise ignores the cutoff: ρ ~ Lap(4/ε), ν ~ Lap(4/(3ε))."""
    surgery.noise(lambda c: _epsilon(c) / 4, lambda c: 3 * _epsilon(c) / 4)


def lsl_5(surgery: Surgery) -> None:
    """No query noise: ρ ~ Lap(2/ε)."""
    surgery.noise(lambda c: _epsilon(c) / 2, lambda _: NO_NOISE)


def lsl_6(surgery: Surgery) -> None:
    """ρ and ν ~ Lap(2/ε) for any number of ⊤s; the tests use a cutoff that is not reached."""
    surgery.noise(lambda c: _epsilon(c) / 2, lambda c: _epsilon(c) / 2)


def typical_error_without_noise(surgery: Surgery) -> None:
    """The distance between estimate and table is published without noise."""

    def none(self: Any, order: int, law: Any) -> int:
        del self, order, law
        return 0

    surgery.patch.setattr(_KeyedMeasurements, "typical_error_noise", none)


def texts_without_a_threshold(surgery: Surgery) -> None:
    """Every text of a row is released with its noisy count, like declared groups."""
    surgery.exchange(
        release_groups, lambda texts, counts, noise, _: release_groups(texts, counts, noise, -(1 << 40))
    )


def names_without_a_rule(surgery: Surgery) -> None:
    """Every text of a person is named, like declared groups."""
    surgery.exchange(
        release_keys,
        lambda names, people, words, _: release_keys(names, people, words, np.array([0, CERTAIN], np.uint64)),
    )


@dataclass(frozen=True)
class _Difference:
    """ν − ρ, so that every query has a separate threshold noise."""

    query: Sampler
    threshold: Sampler

    @property
    def words(self) -> int:
        return self.query.words + self.threshold.words

    def draw(self, high: Words, low: LowWords) -> IntegerArray:
        width = self.query.words
        ours = self.query.draw(high[:, :width], lambda row: low(row)[:width])
        theirs = self.threshold.draw(high[:, width:], lambda row: low(row)[width:])
        return np.asarray(ours - theirs)


def noise_of_a_node_for_each_answer(surgery: Surgery) -> None:
    """A running count's noise is drawn again for each answer, instead of once for each sum."""
    answers = itertools.count()
    surgery.patch.setattr(
        window_families, "node_name", lambda group, node: node_name(group, node) + next(answers).to_bytes(8, "big")
    )


def level_not_paid_for(surgery: Surgery) -> None:
    """A running count's noise is planned for one level fewer than its tree has."""
    surgery.patch.setattr(
        window_families,
        "node_law",
        lambda c: sampler("two_sided", _epsilon(c) / ((c.levels - 1) * c.sensitivity_steps)),
    )


def new_threshold_for_each_query(surgery: Surgery) -> None:
    """ρ is drawn again for every comparison."""
    surgery.exchange(query_sampler, lambda c: _Difference(query_sampler(c), threshold_sampler(c)))
    surgery.exchange(threshold_sampler, lambda _: sampler("one_sided", NO_NOISE))


def noise_redrawn_at_restart(surgery: Surgery) -> None:
    """Every start of a worker draws its noise from fresh randomness."""
    starts = itertools.count()

    class Fresh(NoiseKey):
        @property
        def key_id(self) -> str:
            return NoiseKey(original[self.secret]).key_id

    original: dict[bytes, bytes] = {}

    def started(topics: Any, partition: int, key: NoiseKey, *parts: Any) -> QueryProcessor:
        secret = blake3(next(starts).to_bytes(8, "big"), key=key.secret).digest()
        original[secret] = key.secret
        return QueryProcessor(topics, partition, Fresh(secret), *parts)

    surgery.exchange(QueryProcessor, started)


def cutoff_forgotten_at_restart(surgery: Surgery) -> None:
    """A restored stream starts counting its ⊤s from 0."""
    resume = LifeCycle.resume

    def forgetting(life: LifeCycle, found: Sequence[tuple[int, Any, int]]) -> None:
        resume(life, [(slot, replace(kept, tops=0, state="open", reason=None), at) for slot, kept, at in found])

    surgery.patch.setattr(LifeCycle, "resume", forgetting)


def same_noise_for_other_data(surgery: Surgery) -> None:
    """Noise depends only on the source, and neither on the stream nor on the query's place and bytes."""

    def digest(_: Any, account: Any, __: Any) -> str:
        return blake3(account.source.source.encode()).hexdigest()

    def subkey(key: NoiseKey, **context: Any) -> bytes:
        return stream_subkey(key, **{**context, "incarnation": ""})

    def subkeys(key: NoiseKey, *, incarnations: Spans, definitions: Spans, role: DrawRole) -> Spans:
        nobody = Spans(incarnations.data, incarnations.at, np.zeros_like(incarnations.size))
        return stream_subkeys(key, incarnations=nobody, definitions=definitions, role=role)

    def words(subkeys: Any, topic: str, partition: int, offsets: Any, payloads: Any, count: int) -> Any:
        return event_words(subkeys, topic, partition, [0] * len(offsets), [b""] * len(payloads), count)

    surgery.patch.setattr(openings, "definition_digest", digest)
    surgery.exchange(stream_subkey, subkey)
    surgery.exchange(stream_subkeys, subkeys)
    surgery.exchange(event_words, words)


def decimals_rounded_as_doubles(surgery: Surgery) -> None:
    """⌊x/γ + ½⌋ is computed for the doubles nearest to the value and the grid, instead of the written decimals."""

    def round_private(grid: Grid, doubles: Any, _: Any) -> IntegerArray:
        gamma = Fraction(float(grid.gamma))
        return np.array([math.floor(Fraction(float(one)) / gamma + Fraction(1, 2)) for one in doubles])

    surgery.patch.setattr(Grid, "round_private", round_private)


def gaussian_noise_too_narrow(surgery: Surgery) -> None:
    """σ of each answer is that of a single answer, for any number of answers."""
    surgery.exchange(gaussian, lambda variance: gaussian(variance / 16))


def distances_in_parts_of_a_row(surgery: Surgery) -> None:
    """A quantile's weights use distances in 1/1000 of a row, with the rate of whole rows."""

    def unscaled(rate: Fraction) -> ExponentialWeights:
        return weights_for(rate * 1000)

    surgery.patch.setattr(selection, "weights_for", unscaled)


def questions_of_a_hypothesis_without_noise(surgery: Surgery) -> None:
    """LSL's Algorithm 5 for estimates and multiplicative weights: errors without noise are compared with a noisy threshold."""

    def none(self: Any, tops: int, places: range) -> IntegerArray:
        del self, tops
        return np.zeros(len(places), dtype=np.int64)

    surgery.patch.setattr(_KeyedNoise, "query_noise", none)
    surgery.patch.setattr(_KeyedMeasurements, "query_noise", none)
