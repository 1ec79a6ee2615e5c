"""A table of people with known counts."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS = 6000


AGES, SEXES, TOWNS = 20, ("F", "M"), 5


Row = dict[str, Any]


def people() -> dict[str, list[Any]]:
    """Return rows whose attributes depend on each other: women are young, and towns differ in age."""
    generator = np.random.default_rng(7)
    ages = np.minimum(generator.geometric(0.25, ROWS) - 1, AGES - 1)
    women = generator.random(ROWS) < np.where(ages < 3, 0.9, 0.3)
    towns = (ages + np.where(women, 0, 2) + (generator.random(ROWS) < 0.2)) % TOWNS
    return {"age": ages.tolist(), "sex": ["F" if w else "M" for w in women], "town": towns.tolist()}


PEOPLE = people()
TABLE: list[Row] = [dict(zip(PEOPLE, row, strict=True)) for row in zip(*PEOPLE.values(), strict=True)]
