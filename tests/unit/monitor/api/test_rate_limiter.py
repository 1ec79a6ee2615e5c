"""Rate limits without the rest of the monitor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream.diagnostics import RateLimiter


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60), st.floats(0.5, 5.0), st.integers(1, 5))
def test_rate_limiter_allows_at_most_burst_and_rate(pauses: list[float], rate: float, burst: int) -> None:
    now = 0.0
    limiter = RateLimiter(rate, burst, clock=lambda: now)
    allowed = 0
    for pause in pauses:
        now += pause
        allowed += limiter.count_request("asker") == 0.0
    assert allowed <= burst + rate * now + 1e-6


def test_rate_limiter_accepts_client_after_stated_wait() -> None:
    now = 0.0
    limiter = RateLimiter(0.7, 1, clock=lambda: now)
    assert limiter.count_request("asker") == 0.0
    wait = limiter.count_request("asker")
    assert wait > 0.0
    now += wait
    assert limiter.count_request("asker") == 0.0
    assert limiter.count_request("another") == 0.0


def test_rate_limiter_remembers_limited_number_of_clients() -> None:
    limiter = RateLimiter(1e-9, 1, clock=lambda: 0.0, max_clients=10)
    for asker in range(1000):
        limiter.count_request(asker)
    assert len(limiter._buckets) == 10
    assert limiter.count_request(999) > 0.0
