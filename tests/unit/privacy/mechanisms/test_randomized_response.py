"""Each category becomes one category, for any uniform number."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.mechanisms.selection import choose_response
from stream.privacy.planning.response_plans import RESPONSE_BITS, response_law

uniforms = st.integers(0, (1 << RESPONSE_BITS) - 1)


@given(data=st.data(), categories=st.integers(2, 4096), uniform=uniforms, epsilon=st.floats(1e-6, 1000.0))
def test_choose_response_returns_category(
    data: st.DataObject, categories: int, uniform: int, epsilon: float
) -> None:
    own = data.draw(st.integers(0, categories - 1))
    assert 0 <= choose_response(own, response_law(Fraction(epsilon), categories), uniform) < categories


@given(own=st.integers(0, 4), uniform=uniforms)
def test_choose_response_returns_truth_beyond_other_weights(own: int, uniform: int) -> None:
    law = response_law(Fraction(1), 5)
    assert (choose_response(own, law, uniform) == own) == (uniform >= 4 * law.other_weight)
