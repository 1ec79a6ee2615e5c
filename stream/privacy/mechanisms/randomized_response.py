"""Randomized response: one person's category in, a category drawn around it out.

Nothing here draws noise or does any I/O; privacy is proved in docs/proofs/randomized-response.md.
"""

from __future__ import annotations

from stream.privacy.planning.response_plans import RESPONSE_BITS, Response

RESPONSE_WORDS = RESPONSE_BITS // 64
"""64-bit words that one answer reads: a uniform whole number below 2^128, of which probabilities are parts."""


def respond(own: int | None, law: Response, uniform: int) -> int:
    """The category to publish for a person's ``own``, both as numbers below k.

    ``uniform`` is a whole number below 2^128. Each category but the own one is published for exactly ``law.other`` of
    them, the own one for the rest. Whose category is none of the k (None) gets each of them for as many, but for one.
    """
    if own is None:
        return uniform * law.categories >> RESPONSE_BITS
    other = uniform // law.other
    if other >= law.categories - 1:
        return own
    return other + (other >= own)
