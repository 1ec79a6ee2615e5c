"""Printed numbers have as many digits as their printed bound needs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Amount, Bins, Query
from stream.cli.manage import query_commands, shell_command
from stream.cli.output import format_amount, format_left
from stream.formatting import format_error_bound, format_estimate, format_share, values_of
from stream.privacy.planning.promises import Promise
from stream.questions import Result, Results, result_text
from stream.questions.alert_states import estimate_text
from stream.questions.html_tables import format_html_table
from tests.builders import parse_source, parse_stream, source, stream


@pytest.mark.parametrize(
    ("number", "alpha", "expected"),
    [
        (12345678.0, 4.0, "12345678 ± 4"),
        (12345678.4, 4.0, "12345678.4 ± 4"),
        (31978.23456, 60.31421, "31978.23 ± 60.32"),
        (0.331234567, 0.01234501, "0.33123 ± 0.01235"),
        (23.456, 12345.2, "23 ± 12346"),
        (1200000.0, 1200000.0, "1200000 ± 1200000"),
        (-0.00001, 60.3, "0 ± 60.3"),
        (5.0, 9.99999, "5 ± 10"),
        (1e300, 1e290, "1e+300 ± 1e+290"),
        (2e-9, 1.23456e-9, "2e-9 ± 1.235e-9"),
        (1.23456789, 0.0, "1.23456789 ± 0"),
        (0.1, 0.1, "0.1 ± 0.1"),
    ],
)
def test_number_ends_at_the_digit_of_its_bound(number: float, alpha: float, expected: str) -> None:
    assert f"{format_estimate(number, alpha)} ± {format_error_bound(alpha)}" == expected


def test_number_without_a_bound_keeps_its_whole_digits() -> None:
    assert format_estimate(12345678.0, None) == "12345678"
    assert format_estimate(1 / 3, None) == "0.333333"
    assert format_estimate(12345678.0, 4.0, grouped=True) == "12,345,678"
    assert format_error_bound(float("inf")) == "inf"


def test_only_exact_shares_are_none_or_all() -> None:
    shares = [0.0, 1e-9, 0.001, 0.995, 0.9996, 1.0]
    assert [*map(format_share, shares)] == ["0.0%", "< 0.1%", "0.1%", "99.5%", "> 99.9%", "100.0%"]


def test_left_amount_is_rounded_down() -> None:
    """A request for the shown amount fits into what is left."""
    left = Amount(epsilon=2 / 3, delta=1.49e-7)
    assert (format_amount(left), format_left(left)) == ("ε 0.666667, δ 1.5e-07", "ε 0.666666, δ 1.4e-07")
    assert format_left(Amount(epsilon=0.3, delta=0.0, rho=2 / 3)) == "ρ 0.6666 (ε 0.3 added up)"
    assert format_left(Amount(epsilon=8.0, delta=0.0)) == "ε 8"
    assert format_left(Amount(epsilon=8.0, delta=4.5e-23)) == "ε 8"


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, st.floats(0.0, allow_infinity=False))
def test_printed_number_is_within_its_printed_bound(number: float, alpha: float) -> None:
    printed, promised = (
        Fraction(text.replace(",", ""))
        for text in (format_estimate(number, alpha), format_error_bound(alpha, grouped=True))
    )
    assert promised >= Fraction(alpha) * (1 - Fraction(1, 10**12))
    assert promised <= Fraction(alpha) * Fraction(1002, 1000) or promised - Fraction(alpha) < 1
    assert abs(printed - Fraction(number)) <= max(
        Fraction(alpha) / 1000, abs(Fraction(number)) / 10**14, Fraction(1, 10**300)
    )
    assert format_estimate(number, alpha).count("e") <= 1


def answer(**numbers: object) -> Result:
    return Result.model_validate({"id": "q", "stream": "s", "outcome": "answer", "alpha": 4.00004, **numbers})


@pytest.mark.parametrize(
    "text",
    [
        result_text.format_answer(answer(estimate=12345678.0)),
        result_text.format_answer(answer(estimates=(12345678.0, 1.0))),
        format_html_table([{"estimate": 12345678.0, "alpha": 4.00004}]),
        format_html_table([{"n": 12345678.0, "n ±": 4.00004}]),
        estimate_text(answer(estimate=12345678.0)),
        query_commands._format_answer(answer(estimate=12345678.0)),
        query_commands._format_answer(answer(estimates=(12345678.0, 1.0))),
        shell_command._cell({"n": 12345678.0, "n ±": 4.00004}, "n"),
        f"12345678 {Promise('', 4.00004, '', '', 0.95, '', '')}",
    ],
)
def test_numbers_and_bounds_have_one_notation_everywhere(text: str) -> None:
    plain = text.replace(",", "")
    assert "12345678" in plain
    assert "4.001" in plain


def test_numbers_are_written_within_their_intervals() -> None:
    """No text says "-3 (95 %: 0 to 1)"; the published number stays as it is."""
    few = answer(estimate=-3.0, interval=(0.0, 1.0))
    assert "s: 0 (95 %: 0 to 1)" in result_text.format_answer(few)
    assert few.estimate == -3.0
    groups = answer(estimates=(-3.0, 7.0), intervals=((0.0, 0.0), (3.0, 11.0)))
    assert "[0 (95 %: below 0, by noise), 7 (95 %: 3 to 11)]" in result_text.format_answer(groups)
    assert "0 (95 %: below 0, by noise), 7 (95 %: 3 to 11)" in query_commands._format_answer(groups)
    row = {"n": -3.0, "n ±": 4.0, "n 95% low": 0.0, "n 95% high": 1.0}
    assert shell_command._cell(row, "n") == "0 ± 4"
    assert ">-3<" not in format_html_table([row])


def test_interval_out_of_the_range_does_not_look_exact() -> None:
    """The noise moved the whole interval below 0 rows, or above all rows; ``0 to 0`` would look exact."""
    row = {"n": -9.0, "n ±": 4.0, "n 95% low": 0.0, "n 95% high": 0.0}
    assert shell_command._cell(row, "n 95% low") == "below 0, by noise"
    assert "0 to 0" not in estimate_text(answer(estimate=-9.0, interval=(0.0, 0.0)))
    assert format_html_table([row]).count("<td>below 0, by noise</td>") == 2
    assert "(95 %: above 1, by noise)" in result_text.format_answer(answer(estimate=1.2, interval=(1.0, 1.0)))
    assert "(95 %: 23 to 23)" in result_text.format_answer(answer(estimate=23.0, interval=(23.0, 23.0)))


def test_answer_to_an_unknown_question_has_intervals_without_alpha() -> None:
    """The alpha of a quantile is in rows of rank, and only the question says that it is a quantile."""
    text = query_commands._format_answer(
        answer(estimates=(3682.0, 51.0), intervals=((1635.0, 5729.0), (0.0, 90.0)))
    )
    assert text == "s q answer 3682 (95 %: 1635 to 5729), 51 (95 %: 0 to 90)"
    assert result_text.format_answer(answer(estimate=50.0, interval=(24.0, 74.0))) == "s: 50 (95 %: 24 to 74)"
    median = answer(estimate=50.0, basis="estimate")
    for text in (query_commands._format_answer(median), result_text.format_answer(median)):
        assert "4.001, of a quantile in rows of rank" in text


@pytest.mark.parametrize(
    ("question", "head"),
    [({"group_by": ["age"]}, "count"), ({"stddev": "age", "group_by": ["sex"]}, "stddev"), (None, "estimate")],
)
def test_column_of_group_numbers_is_named_by_the_question(question: dict[str, object] | None, head: str) -> None:
    asked = None if question is None else Query.model_validate({"id": "q", "stream": "s", **question})
    assert (
        query_commands._numbers_heading(
            Result.read(answer(estimates=(1.0,)).model_dump_json().encode()).with_question(asked, None)
        )
        == head
    )


def test_typical_error_of_an_unknown_question_has_no_unit() -> None:
    """It may be that of a share."""
    assert result_text.format_typical_error(answer(typical_error=0.012)) == "typical error about 0.012"


def test_printed_answer_names_no_rest_of_a_stream_that_ended() -> None:
    """The rest of a closed stream is refunded; dates have intervals instead of a ± in rows of rank."""
    closed = answer(outcome="halted", alpha=None, reason="closed on request", tops_left=3)
    assert query_commands._format_answer(closed) == "s q halted: closed on request"
    day = answer(choice="2024-01-05", choice_intervals=(("2024-01-02", "2024-01-07"),), tops_left=3)
    assert query_commands._format_answer(day) == (
        "s q answer '2024-01-05' (95 %: 2024-01-02 to 2024-01-07), 3 charged answers left"
    )
    two = answer(choices=("low", "high"), choice_intervals=(("low", "mid"), ("mid", "high")), tops_left=3)
    assert query_commands._format_answer(two) == (
        "s q answer 'low' (95 %: low to mid), 'high' (95 %: mid to high), 3 charged answers left"
    )


def test_quantile_of_a_window_has_its_error_in_events_of_rank() -> None:
    """The ± of such an answer is in another unit than its value, and so the text names the unit."""
    standing = {"quantile": "delay", "window": {"size": "1h"}}
    spec = parse_stream(stream("typical", "flights", "laplace", mechanism={"answers": 9}, standing=standing))
    flights = parse_source(source("flights", "events"))
    window = {"start": "2024-01-01T00:00:00Z", "end": "2024-01-01T01:00:00Z"}
    published = answer(estimate=5.0, window=window).model_dump_json(exclude_none=True).encode()
    found = Result.read(published).with_stream(spec, flights)
    assert (found.alpha_unit, Result.read(published).alpha_unit) == (" events of rank", "")
    assert "5 ± 4.001 events of rank" in repr(found)


@pytest.mark.parametrize(
    ("edges", "values"),
    [
        ((0, 0.5, 1e6), ["[0, 0.5)", "[0.5, 1e+06]"]),
        (
            (1_700_000_000, 1_700_003_600, 1_700_007_200.25),
            ["[1700000000, 1700003600)", "[1700003600, 1700007200.25]"],
        ),
    ],
)
def test_bins_have_different_names(edges: tuple[float, ...], values: list[str]) -> None:
    """Six digits are enough for most edges; for others, all digits are written."""
    assert values_of(Bins(edges=edges)) == values


def test_quantile_has_the_digits_of_its_interval() -> None:
    """The error bound of a quantile is in rows of rank, so it says nothing about the digits of an age."""
    question = Query.model_validate({"id": "q", "stream": "s", "quantile": "stay", "q": 0.5})
    one = answer(alpha=62.5, estimate=4.25, interval=(4.25, 4.25)).with_question(question, None)
    assert "s: 4.25 ± 62.5 rows of rank (95 %: 4.25 to 4.25)" in result_text.format_answer(one)
    assert " 4.25 (±62.5 rows of rank, 95 %: 4.25 to 4.25)" in query_commands._format_answer(one)
    several = answer(alpha=6250.0, estimates=(7.399, 123456.75), intervals=((7.298, 7.412), (123456.5, 123457.0)))
    assert "[7.399, 123456.75]" in result_text.format_answer(several.with_question(question, None))
    table = Results([one])._repr_html_()
    assert (">4.25<" in table, "62.5 rows of rank" in table, 'aria-label="4.25 to 4.25"' in table) == (True,) * 3


def test_number_of_an_unknown_question_has_the_digits_of_its_interval() -> None:
    """Other clients' answers do not have their questions, and may be quantiles."""
    one = answer(alpha=6250.0, estimate=4.25, interval=(4.0, 4.5))
    assert "s: 4.25 (95 %: 4 to 4.5)" in result_text.format_answer(one)
    several = answer(alpha=6250.0, estimates=(4.25,), intervals=((4.0, 4.5),))
    assert "s: [4.25 (95 %: 4 to 4.5)]" in result_text.format_answer(several)
    guessed = answer(alpha=6250.0, estimate=4.25, basis="hypothesis")
    assert "s: 4.25 ± 6250, of a quantile in rows of rank" in result_text.format_answer(guessed)
    table = one._repr_html_()
    assert (">4.25<" in table, "6250" in table, "±" in table, 'aria-label="4 to 4.5"' in table) == (
        True,
        False,
        False,
        True,
    )


def test_window_of_an_unknown_stream_has_the_digits_of_its_interval() -> None:
    window = {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"}
    one = answer(alpha=6250.0, estimate=4.25, interval=(4.0, 4.5), window=window)
    assert "06:00:00Z]: 4.25 (95 %: 4 to 4.5)" in result_text.format_answer(one)


def test_number_without_an_error_shows_no_rounding_of_doubles() -> None:
    """The quartiles 0.4 and 0.7 differ by 0.29999999999999993 in doubles."""
    spread = 0.7 - 0.4
    assert format_estimate(spread, 0.0) == "0.3"
    one = answer(estimate=spread, interval=(spread, spread))
    assert "s: 0.3 (95 %: 0.3 to 0.3)" in result_text.format_answer(one)
    assert format_estimate(123456.75, 0.0) == "123456.75"
