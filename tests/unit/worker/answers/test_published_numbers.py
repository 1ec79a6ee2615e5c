"""Numbers on a decimal grid are published as exact decimals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from stream.privacy.composition.costs import shortest_decimal
from tests.builders import KEY, installation, source, stream

GRIDS = [0.1, 0.3, 0.7, 0.01, 0.005, 0.001, 1.1, 2.5]
ASKED = 200


def answers_on_grid(
    grid: float, mechanism: dict[str, Any], questions: Iterable[dict[str, Any]]
) -> Sequence[Answer]:
    driver = installation(
        stream("s", mechanism=mechanism, epsilon=900.0),
        sources=[source(epsilon=1000.0, sensitivity=10 * grid, grid=grid)],
    )
    return driver.ask_many([{"id": str(number), "stream": "s", **one} for number, one in enumerate(questions)])


def assert_on_the_grid(numbers: list[float], grid: float) -> None:
    assert len(numbers) >= ASKED
    for number in numbers:
        assert (Fraction(shortest_decimal(number)) / Fraction(shortest_decimal(grid))).denominator == 1, number


@pytest.mark.parametrize("numbers", ["fresh", "gap"])
@pytest.mark.parametrize("grid", GRIDS)
def test_numbers_of_sparse_vectors_are_multiples_of_the_grid(grid: float, numbers: str) -> None:
    mechanism = {"kind": "numeric_sparse", "threshold": 0.0, "cutoff": ASKED, "numbers": numbers}
    answers = answers_on_grid(grid, mechanism, ({"value": 1e6 * grid * (1 + place)} for place in range(ASKED)))
    assert_on_the_grid([one.estimate for one in answers if one.estimate is not None], grid)


@pytest.mark.parametrize("grid", GRIDS)
def test_noisy_values_are_multiples_of_the_grid(grid: float) -> None:
    mechanism = {"kind": "laplace", "answers": 2 * ASKED, "dimensions": 3}
    single = [{"value": grid * place} for place in range(ASKED)]
    several = [{"values": [grid * place, -grid * place, 1.0]} for place in range(ASKED)]
    answers = answers_on_grid(grid, mechanism, [*single, *several])
    assert_on_the_grid([one.estimate for one in answers if one.estimate is not None], grid)
    assert_on_the_grid([number for one in answers for number in one.estimates or ()], grid)


def test_noisy_share_of_public_rows_is_the_nearest_double() -> None:
    rows = 49
    driver = Driver(KEY, partitions=1)
    table: dict[str, Any] = {"path": "in memory", "attributes": {"sex": ["F", "M"]}}
    driver.register(source("people", "table", neighbors="replace", epsilon=1000.0, **table), {"sex": ["F"] * rows})
    driver.open(stream("s", "people", "laplace", mechanism={"answers": ASKED}, epsilon=50.0))
    asked = [{"id": str(n), "stream": "s", "fraction": True, "where": "sex = 'F'"} for n in range(ASKED)]
    shares = [one.estimate for one in driver.ask_many(asked) if one.estimate is not None]
    assert len(shares) == ASKED
    assert all(share == round(share * rows) / rows for share in shares)
