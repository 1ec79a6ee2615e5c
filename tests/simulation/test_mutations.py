"""A simulation that cannot fail proves nothing: it finds every engine with one thing wrong."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.schedule import play

SCHEDULES = 150
"""Within so many schedules each is found; none of them fails with the engine as it is."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_an_engine_with_one_thing_wrong_is_found_out(mutation: Mutation) -> None:
    with mutation():
        for seed in range(SCHEDULES):
            report = play(seed)
            if report.violations:
                print(f"{mutation.__name__}: found by seed {seed}: {report.violations[0]}")  # noqa: T201
                return
    pytest.fail(f"not found within {SCHEDULES} schedules")
