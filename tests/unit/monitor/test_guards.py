"""Tokens and rate limits by themselves."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.environment import OPERATOR_VARIABLE, VIEWER_VARIABLE
from stream.monitor.tokens import TokenError, Tokens, make_token_file
from stream.rate_limits import RateLimiter
from stream.secret_files import SecretFileError
from stream.settings import Settings

OPERATOR, VIEWER = "o" * 32, "v" * 32


def test_tokens_come_from_owner_only_files_made_once(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("operator", "viewer")}
    for path in files.values():
        make_token_file(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    texts = {name: path.read_text() for name, path in files.items()}
    for path in files.values():
        make_token_file(path)
    assert texts == {name: path.read_text() for name, path in files.items()}
    settings = Settings(
        monitor_operator_token_file=str(files["operator"]), monitor_viewer_token_file=str(files["viewer"])
    )
    tokens = Tokens.load(settings, {})
    assert tokens.role_of(texts["operator"].strip()) == "operator"
    assert tokens.role_of(texts["viewer"].strip()) == "viewer"
    files["viewer"].chmod(0o640)
    with pytest.raises(SecretFileError, match="chmod 600"):
        Tokens.load(settings, {})


def test_tokens_may_come_from_the_environment() -> None:
    tokens = Tokens.load(Settings(), {OPERATOR_VARIABLE: OPERATOR, VIEWER_VARIABLE: VIEWER})
    assert (tokens.role_of(OPERATOR), tokens.role_of(VIEWER), tokens.role_of("")) == ("operator", "viewer", None)


def test_without_tokens_the_monitor_does_not_start() -> None:
    with pytest.raises(TokenError, match=VIEWER_VARIABLE):
        Tokens.load(Settings(), {OPERATOR_VARIABLE: OPERATOR})


@pytest.mark.parametrize("bad", ["", "short", "o" * 31, "o o" * 20, "ö" * 40, "o" * 40 + "\n"])
def test_a_weak_or_unsendable_token_is_refused_and_not_shown(bad: str) -> None:
    for pair in ((bad, VIEWER), (OPERATOR, bad)):
        with pytest.raises(TokenError, match="at least 32") as refused:
            Tokens.of(*pair)
        assert not bad or bad not in str(refused.value)


def test_one_token_for_both_roles_is_refused() -> None:
    with pytest.raises(TokenError, match="same"):
        Tokens.of(OPERATOR, OPERATOR)


def test_tokens_do_not_show_in_what_is_printed() -> None:
    tokens = Tokens.of(OPERATOR, VIEWER)
    assert repr(tokens) == "Tokens()"


@given(st.text(max_size=64))
def test_any_other_text_is_nobodys_token(text: str) -> None:
    if text not in {OPERATOR, VIEWER}:
        assert Tokens.of(OPERATOR, VIEWER).role_of(text) is None


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60), st.floats(0.5, 5.0), st.integers(1, 5))
def test_no_more_is_allowed_than_the_burst_and_the_rate(pauses: list[float], rate: float, burst: int) -> None:
    now = 0.0
    limiter = RateLimiter(rate, burst, clock=lambda: now)
    allowed = 0
    for pause in pauses:
        now += pause
        allowed += limiter.wait("asker") == 0.0
    assert allowed <= burst + rate * now + 1e-6


def test_whoever_waits_as_long_as_told_is_let_in() -> None:
    now = 0.0
    limiter = RateLimiter(0.7, 1, clock=lambda: now)
    assert limiter.wait("asker") == 0.0
    wait = limiter.wait("asker")
    assert wait > 0.0
    now += wait
    assert limiter.wait("asker") == 0.0
    assert limiter.wait("another") == 0.0


def test_only_so_many_askers_are_remembered() -> None:
    limiter = RateLimiter(1e-9, 1, clock=lambda: 0.0, askers=10)
    for asker in range(1000):
        limiter.wait(asker)
    assert len(limiter._buckets) == 10
    assert limiter.wait(999) > 0.0
