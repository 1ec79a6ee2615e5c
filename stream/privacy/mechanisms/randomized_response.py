"""Randomized response: draws the published category around a person's category.

Proof of privacy: docs/proofs/randomized-response.md.
"""

from __future__ import annotations

from stream.privacy.planning.response_plans import RESPONSE_BITS, Response

RESPONSE_WORDS = RESPONSE_BITS // 64
"""Number of 64-bit words in ``uniform``, an integer below 2^128."""


def respond(own: int | None, law: Response, uniform: int) -> int:
    """Return the category to publish for a person's category ``own``; both are below k.

    ``uniform`` is an integer below 2^128. Each other category is published for exactly
    ``law.other`` of its values, ``own`` for the rest. If ``own`` is None (none of the k), the
    shares of all categories differ by at most one value.
    """
    if own is None:
        return uniform * law.categories >> RESPONSE_BITS
    other = uniform // law.other
    if other >= law.categories - 1:
        return own
    return other + (other >= own)
