"""The limit on the texts of a window of a live topic, and the noisy test that enforces it.

A person changes the size of a window's texts only by texts that no other person has. These cost δ
and no ε, so that the test costs no ε either. Proof: docs/proofs/unknown-groups.md.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from schemas import UnknownGroupsCalibration
from stream.privacy.noise.samplers import TwoSidedGeometric, sampler

MOST_WINDOW_BYTES: Final = 600 * 1024
"""Maximum number of bytes of a window's texts, by ``text_size``; a record of the topic ``queries`` holds them."""
TEXT_OVERHEAD: Final = 12
"""Bytes of a text's count and lengths in a record."""
SIZE_SHARE: Final = Fraction(9, 10)
"""The rate of the test for one text, as a part of the rate of a count's noise."""
DELTA_SHARE: Final = Fraction(1, 16)
"""The part of δ for the case that the test finds a too large window small enough."""


def text_size(text: bytes) -> int:
    """Return the bytes that a text adds to the size of its window, whatever its count."""
    return len(text) + TEXT_OVERHEAD


def most_texts_within(most_bytes: int) -> int:
    """Return the most texts, each of at least one byte, that fit a limit."""
    return most_bytes // (1 + TEXT_OVERHEAD)


def largest_text(max_length: int) -> int:
    """Return the size of the longest text of an attribute."""
    return max_length + TEXT_OVERHEAD


def size_law(calibration: UnknownGroupsCalibration) -> TwoSidedGeometric:
    """Return the noise of the size of a window's texts."""
    rate = Fraction(calibration.epsilon_answer) / calibration.sensitivity_steps
    return sampler("two_sided", size_rate(rate, calibration.text_bytes or 1))


def size_rate(rate: Fraction, text_bytes: int) -> Fraction:
    """Return the rate of the size's noise for each byte."""
    return rate * SIZE_SHARE / text_bytes


def is_too_large(calibration: UnknownGroupsCalibration, size: int, noise: int) -> bool:
    """Return whether a window with texts of this size releases none of them.

    A size above the limit is always too large, because its texts are not kept.
    """
    if calibration.most_bytes is None or calibration.size_threshold is None:
        return False
    return size > calibration.most_bytes or size + noise > calibration.size_threshold
