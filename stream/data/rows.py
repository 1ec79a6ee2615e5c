"""The rows of a table as a file has them, encoded, before anything says which of them count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas import Domain, TableSource
from stream.data.encoding import CodeArray, encode
from stream.data.files import Frame, in_memory, read_columns
from stream.data.people import People, people_of


@dataclass(frozen=True)
class Rows:
    """Rows as codes of the declared attributes, and whose they are where the source says so; nothing is counted by them.

    ``file_row_count`` counts the file's rows, those that the domains' rules left out among them.
    """

    attributes: Mapping[str, Domain]
    private_codes: Mapping[str, CodeArray]
    file_row_count: int
    people: People | None = None

    @property
    def private_row_count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.private_codes.values())))

    @classmethod
    def load(cls, source: TableSource, frame: Frame | None = None) -> Rows:
        """Read a source's rows from its file, or from ``frame`` instead, and encode them by the declared domains.

        Rows that the domains' rules leave out are not among them, nor are those that name nobody where rows have a person.
        DataError if the file or a column is missing or unreadable; no error depends on what a cell of a well-formed file holds.
        """
        names = columns_of(source)
        cells = read_columns(Path(source.path), names) if frame is None else in_memory(frame, names)
        kept = np.ones(cells.height, dtype=np.bool_)
        encoded: dict[str, CodeArray] = {}
        for name, domain in source.attributes.items():
            encoded[name], known = encode(name, domain, cells[name])
            kept &= known
        people = None
        if source.person is not None:
            people, somebody = people_of(source.person, cells[source.person])
            kept &= somebody
            people = People(people.private_numbers[kept], people.private_names)
        codes = {name: column[kept] for name, column in encoded.items()}
        return cls(source.attributes, codes, cells.height, people)


def columns_of(source: TableSource) -> list[str]:
    """The columns that a source's table is read from: its attributes, and who each row's person is."""
    return list(dict.fromkeys([*source.attributes, *([] if source.person is None else [source.person])]))
