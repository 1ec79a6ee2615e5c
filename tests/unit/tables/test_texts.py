"""Text attributes have the same texts in every kind of table: exact, bounded, and hashed by their content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from deltalake import write_deltalake

from schemas import TableSource, Text
from stream.tables import texts as texts_module
from stream.tables.checks import check_table
from stream.tables.columns_table import PrivateTable
from stream.tables.predicates import parse
from stream.tables.readers import reading_protocol
from stream.tables.rows import Rows
from stream.tables.store import TableStore
from stream.tables.table_errors import UnreadableError
from stream.tables.texts import join_texts, split_texts
from tests.unit.tables.readers.guarded import cause, reader
from tests.unit.tables.small import KEY, source

pytestmark = pytest.mark.usefixtures("forked_readers")

NOTES = ["flu", "Flu", " flu", "ä", "a\u0308", "", None, "x" * 8, "y" * 9, 'a,"b"\nc', "flu"]
EXPECTED = {"flu": 2, "Flu": 1, " flu": 1, "ä": 1, "a\u0308": 1, "x" * 8: 1, 'a,"b"\nc': 1}
SEXES = ["F", "M"] * 5 + ["F"]


def declared(path: Path | str = "unused.csv", **changes: Any) -> TableSource:
    attributes: Any = {"sex": ["F", "M"], "note": {"kind": "text", "max_length": 8}}
    return source(attributes, path, **changes)


def frame(notes: Sequence[str | None] = NOTES, sexes: Sequence[str] = SEXES) -> pl.DataFrame:
    return pl.DataFrame({"sex": sexes, "note": notes})


def counted_texts(table: PrivateTable, where: str = "TRUE") -> dict[str, int]:
    counts = table.text_groups("note", parse(where, table.attributes)).private_counts.tolist()
    texts = table.private_texts["note"].private_texts
    return {text.decode(): count for text, count in zip(texts, counts, strict=True) if count}


def _csv(folder: Path) -> Path:
    frame().write_csv(folder / "t.csv")
    return folder / "t.csv"


def _parquet(folder: Path) -> Path:
    frame().with_columns(pl.col("note").cast(pl.Categorical)).write_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def _delta(folder: Path) -> Path:
    write_deltalake(folder / "t", frame())
    return folder / "t"


@pytest.mark.parametrize("write", [_csv, _parquet, _delta])
def test_texts_are_equal_in_every_kind_of_table(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    own = declared(f"{path}/" if path.is_dir() else path)
    table = PrivateTable.from_rows(reader(tmp_path)(own), own)
    assert counted_texts(table) == EXPECTED
    assert counted_texts(table, "sex = 'M'") == {"Flu": 1, "ä": 1, "x" * 8: 1, 'a,"b"\nc': 1}
    assert table.private_row_count == len(NOTES)
    in_memory = TableStore(KEY, overrides={own.source: frame()})
    store = TableStore(KEY, read=reader(tmp_path), stamp=reader(tmp_path).stamp)
    assert store.fingerprint(own) == in_memory.fingerprint(own)


def test_numbers_and_unpaired_surrogates_become_texts() -> None:
    """Numbers and truth values have one spelling, an unpaired surrogate becomes '?'."""
    columns: dict[str, list[object]] = {"sex": ["F"] * 5, "note": [7, 2.5, True, "\ud800", "?"]}
    found = counted_texts(PrivateTable.load(declared(), columns))
    assert found == {"7": 1, "2.5": 1, "true": 1, "?": 2}


@pytest.mark.parametrize("place", range(len(NOTES)))
def test_fingerprint_depends_on_every_text(place: int) -> None:
    def fingerprint_of(notes: Sequence[str | None]) -> str:
        return TableStore(KEY, overrides={"small": frame(notes)}).fingerprint(declared())

    changed = [*NOTES[:place], "other", *NOTES[place + 1 :]]
    assert fingerprint_of(changed) != fingerprint_of(NOTES)


def test_texts_of_others_do_not_change_rows_chosen_for_person() -> None:
    """The codes of texts depend on all rows, but the choice of a person's rows depends on this person alone."""
    own = [f"n{number}" for number in range(40)]

    def chosen_texts(others: Sequence[str]) -> set[str]:
        notes, whose = [*others, *own], [*(str(number) for number in range(len(others))), *["ann"] * len(own)]
        cells = {"sex": ["F"] * len(notes), "note": notes, "who": whose}
        return counted_texts(PrivateTable.load(declared(person="who", contribution=3), cells)).keys() & set(own)

    first = chosen_texts(["z"] * 5)
    assert len(first) == 3
    assert chosen_texts([f"o{number}" for number in range(300)]) == first


def test_table_with_too_many_texts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "MAX_TEXTS", 7)
    assert counted_texts(PrivateTable.load(declared(), frame())) == EXPECTED
    with pytest.raises(UnreadableError, match="different texts in one attribute"):
        Rows.load(declared(), frame([*NOTES[:-1], "new"]))
    # The service does not trust the process that reads.
    monkeypatch.setattr(reading_protocol, "MAX_TEXTS", 6)
    assert "the reading process ended early" in cause(lambda: reader(tmp_path)(declared(_csv(tmp_path))))


def test_texts_count_as_memory_of_the_table(tmp_path: Path) -> None:
    frame([f"{number:08}" for number in range(5000)], ["F"] * 5000).write_csv(tmp_path / "t.csv")
    own = declared(tmp_path / "t.csv")
    assert reader(tmp_path, table=1 << 20)(own).private_row_count == 5000
    assert "SOTTO_TABLE_BYTES" in cause(lambda: reader(tmp_path, table=1 << 19)(own))


@pytest.mark.parametrize(
    "texts", [(b"a", b"a"), (b"",), (b"123456789",), (b"\xff",), ("ä".encode()[:1], "ä".encode()[1:])]
)
def test_received_texts_are_checked(texts: tuple[bytes, ...]) -> None:
    assert split_texts(Text(kind="text", max_length=8), *join_texts((b"a", "ä".encode()))) == (b"a", "ä".encode())
    with pytest.raises(ValueError, match=r"texts|utf-8"):
        split_texts(Text(kind="text", max_length=8), *join_texts(texts))


def test_text_counts_add_up_to_rows_with_text() -> None:
    table = PrivateTable.load(declared(), frame())
    codes = table.private_texts["note"].private_codes
    assert sum(counted_texts(table).values()) == np.count_nonzero(codes) == len(NOTES) - 3


def test_check_reports_rows_without_text(tmp_path: Path) -> None:
    report = check_table(declared(_csv(tmp_path)))
    assert report.fits
    [remark] = [one for one in report.suggestions if "note" in one]
    assert remark.startswith("'note': 3 rows have no text: it is missing, empty or longer than 8 bytes")
    assert check_table(declared(tmp_path / "t.csv", columns={"note": "sex"})).columns.undeclared == ("note",)
