"""No error reveals anything about a cell or the number of rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from schemas import Bins, Categories, Domain, Integers
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CellReader, cell_mask
from stream.tables.predicates import parse
from stream.tables.store import TableStore, fingerprint
from stream.tables.table_errors import TableDataError
from tests.unit.tables.small import source

SENTINEL = "987654321"
ROWS = 4711
ATTRIBUTES: dict[str, Domain] = {
    "number": Integers(minimum=0, maximum=9, outside="reject"),
    "category": Categories(values=("a", "b")),
    "bin": Bins(edges=(0.0, 1.0)),
}
FRAME = pl.DataFrame({name: [SENTINEL] * ROWS for name in ATTRIBUTES})
KEY = bytes(32)


def _file(folder: Path, name: str, content: str) -> Callable[[], object]:
    path = folder / name
    path.write_text(content)
    return lambda: PrivateTable.load(source(ATTRIBUTES, path=str(path)))


def _failures(folder: Path) -> dict[str, Callable[[], object]]:
    row = ",".join([SENTINEL] * 3)
    header = ",".join(ATTRIBUTES)
    table = PrivateTable.load(source(ATTRIBUTES), FRAME)
    other = source({"number": ATTRIBUTES["number"]})
    having = PrivateTable.load(source({"number": Integers(minimum=0, maximum=9), "bin": ATTRIBUTES["bin"]}), FRAME)
    everyone = parse("TRUE", ATTRIBUTES)
    dated = FRAME.with_columns(pl.lit([SENTINEL]).alias("bin"))
    listed = FRAME.with_columns(pl.lit([SENTINEL]).alias("category"))
    return {
        "open quote": _file(folder, "a.csv", f'{header}\n{row}\n1,"{SENTINEL}\n{row}\n'),
        "quote in a cell": _file(folder, "b.csv", f'{header}\n{row}\n1,{SENTINEL}"x,2\n{row}\n'),
        "text after a quote": _file(folder, "c.csv", f'{header}\n"{SENTINEL}"{SENTINEL},1,2\n{row}\n'),
        "missing column": _file(folder, "d.csv", f"number,other\n{row}\n"),
        "no parquet": _file(folder, "e.parquet", f"{header}\n{row}\n"),
        "unknown suffix": _file(folder, "g.dat", row),
        "lists for numbers": lambda: PrivateTable.load(source(ATTRIBUTES), dated),
        "lists for text": lambda: PrivateTable.load(source(ATTRIBUTES), listed),
        "lengths differ": lambda: PrivateTable.load(
            source(ATTRIBUTES), {**FRAME.to_dict(as_series=False), "bin": [SENTINEL]}
        ),
        "column lacks in memory": lambda: PrivateTable.load(source(ATTRIBUTES), FRAME.drop("bin")),
        "other data": lambda: TableStore(KEY, overrides={"small": FRAME}).get(source(ATTRIBUTES), "0" * 64),
        "other schema": lambda: fingerprint(table, other, KEY),
        "other predicate": lambda: table.count(parse("x = 1", {"x": ATTRIBUTES["number"]})),
        "no axis": lambda: cell_mask(parse("number = 1", ATTRIBUTES), {}),
        "undeclared category": lambda: parse("category = 'c'", ATTRIBUTES),
        "no edge": lambda: parse("bin < 3", ATTRIBUTES),
        "sum of bins": lambda: having.total("bin", everyone),
        "group-by too large": lambda: having.group_counts(["number", "bin"], everyone, max_cells=9),
        "group-by of nothing known": lambda: having.group_counts(["other"], everyone),
        "cell of other attributes": lambda: having.cell_counts(["number"], [(10,)]),
        "cell outside": lambda: CellReader(ATTRIBUTES).read({"number": 10, "category": "a", "bin": 0}),
    }


FAILURES = [
    *("open quote", "quote in a cell", "text after a quote", "missing column", "no parquet", "unknown suffix"),
    *(
        "lists for numbers",
        "lists for text",
        "lengths differ",
        "column lacks in memory",
        "other data",
        "other schema",
    ),
    *("other predicate", "no axis", "undeclared category", "no edge"),
    *(
        "sum of bins",
        "group-by too large",
        "group-by of nothing known",
        "cell of other attributes",
        "cell outside",
    ),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_error_reveals_no_cell_and_no_number_of_rows(tmp_path: Path, failure: str) -> None:
    with pytest.raises(TableDataError) as raised:
        _failures(tmp_path)[failure]()
    said = "".join(traceback.format_exception(raised.value))
    for secret in (SENTINEL, str(ROWS), f"{ROWS:,}"):
        assert secret not in str(raised.value)
        assert secret not in said


def test_misfitting_cells_raise_no_error() -> None:
    assert PrivateTable.load(source(ATTRIBUTES), FRAME).private_row_count == 0
    assert SENTINEL not in repr(PrivateTable.load(source(ATTRIBUTES), FRAME))


def test_error_of_broken_csv_file_depends_on_path_alone(tmp_path: Path) -> None:
    messages = set()
    for content in ('number\n"1\n', 'number\n"1"2\n', 'number\n1"2\n2\n3\n'):
        with pytest.raises(TableDataError) as raised:
            _file(tmp_path, "a.csv", content.replace("number", ",".join(ATTRIBUTES)))()
        messages.add(str(raised.value))
    assert len(messages) == 1


def test_error_of_reader_panic_has_none_of_its_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException(SENTINEL)

    monkeypatch.setattr(pl, "read_parquet_schema", panic)
    with pytest.raises(TableDataError, match="no table can be read there") as raised:
        _file(tmp_path, "a.parquet", "")()
    assert SENTINEL not in "".join(traceback.format_exception(raised.value))
