"""The discretised Adult census table for demonstrations: 48,842 rows; see CITATION.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from schemas import Categories, Domain, Integers, TableSource

PATH: Final = Path(__file__).with_name("adult.csv.gz")
"""The table as compressed CSV."""

_CODED_ATTRIBUTES: Final = {
    "workclass": 9,
    "fnlwgt": 100,
    "education-num": 16,
    "marital-status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "capital-gain": 100,
    "capital-loss": 100,
    "hours-per-week": 99,
    "native-country": 42,
    "income>50K": 2,
}


def source(epsilon: float, delta: float = 0.0, accountant: Literal["pure", "zcdp"] = "pure") -> TableSource:
    """Return the table as source ``adult`` with this budget; neighbors add or remove a person.

    ``age`` is in years from 16 to 100, ``sex`` is 'F' or 'M', ``income>50K`` is 0 or 1; every other attribute is a
    code that counts from 0.
    """
    attributes: dict[str, Domain] = {
        "age": Integers(minimum=16, maximum=100),
        "sex": Categories(values=("F", "M")),
    }
    attributes |= {name: Integers(minimum=0, maximum=size - 1) for name, size in _CODED_ATTRIBUTES.items()}
    return TableSource(
        kind="table",
        source="adult",
        neighbors="add-remove",
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        path=str(PATH),
        attributes=attributes,
    )
