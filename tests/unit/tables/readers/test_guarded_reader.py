"""Malicious files harm only a separate reading process, and no error reveals which files exist."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from structlog.testing import capture_logs

from schemas import Categories, TableSource
from stream.tables.columns_table import PrivateTable
from stream.tables.demo_tables import ADULT_PATH, adult_source
from stream.tables.readers import table_reading as reading_module
from stream.tables.readers.table_files import local_files
from stream.tables.readers.table_parts import FilePart
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import Rows
from stream.tables.table_errors import TableDataError
from tests.unit.tables.readers.guarded import AGE, MIB, cause, reader
from tests.unit.tables.small import ATTRIBUTES, source


def test_guarded_reader_equals_direct_reading() -> None:
    declared = adult_source(epsilon=1.0)
    guarded, plain = reader(ADULT_PATH.parent)(declared), PrivateTable.load(declared)
    assert guarded.file_row_count == plain.public_size == 48_842
    assert list(guarded.private_codes) == list(plain.private_codes)
    for name, column in plain.private_codes.items():
        assert guarded.private_codes[name].dtype == column.dtype
        assert np.array_equal(guarded.private_codes[name], column)


def test_guarded_reader_keeps_omitted_rows_and_empty_tables(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    header = ",".join(ATTRIBUTES)
    for rows, kept in ((["18,1,F,DE,1,1", "18,9,F,DE,1,1", ",,,,,"], 1), ([], 0)):
        path.write_text("\n".join([header, *rows, ""]))
        table = reader(tmp_path)(source(path=str(path)))
        assert (table.private_row_count, table.file_row_count) == (kept, len(rows))


def test_guarded_reader_opens_only_regular_files_within_roots(tmp_path: Path) -> None:
    inside, outside = tmp_path / "tables", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "people.csv").write_text("age\n1\n")
    (inside / "link.csv").symlink_to(outside / "people.csv")
    (inside / "loop.csv").symlink_to(inside / "loop.csv")
    os.mkfifo(inside / "pipe.csv")
    (inside / "folder.csv").mkdir()
    read = reader(inside)
    assert read(source(AGE, path=str(inside / "people.csv"))).file_row_count == 1
    found = {
        name: cause(partial(read, source(AGE, path=str(inside / name))))
        for name in ("link.csv", "loop.csv", "pipe.csv", "folder.csv", "none.csv", "../elsewhere/people.csv")
    }
    assert found == {
        "link.csv": "outside SOTTO_TABLE_ROOTS",
        "loop.csv": "missing",
        "pipe.csv": "not a regular file",
        "folder.csv": "not a regular file",
        "none.csv": "missing",
        "../elsewhere/people.csv": "outside SOTTO_TABLE_ROOTS",
    }
    assert cause(lambda: reader()(source(AGE, path=str(inside / "people.csv")))) == "outside SOTTO_TABLE_ROOTS"
    assert cause(lambda: read(source(AGE, path="a\0b.csv"))) == "missing"


def _zipped_csv(path: Path) -> None:
    with gzip.open(path, "wb", 9) as file:
        file.write(b"age\n")
        for _ in range(100):
            file.write(b"1\n" * 500_000)


def _long_cell(path: Path) -> None:
    with gzip.open(path, "wb", 9) as file:
        file.write(b'age\n"')
        for _ in range(400):
            file.write(b"1" * MIB)
        file.write(b'"\n')


def _wide_parquet(path: Path) -> None:
    # Rows are read a few at a time, so it is a single cell that takes more than may be taken; made by another process,
    # whose memory is not counted as this one's.
    write = "import polars, sys; polars.DataFrame({'age': ['1' * (600 << 20)]}).write_parquet(sys.argv[1])"
    subprocess.run([sys.executable, "-c", write, str(path)], check=True)


@pytest.mark.parametrize(
    ("name", "make"), [("a.csv.gz", _zipped_csv), ("b.csv.gz", _long_cell), ("c.parquet", _wide_parquet)]
)
def test_compressed_bomb_ends_only_its_reading_process(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    make(path)
    assert path.stat().st_size < MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cause(lambda: reader(tmp_path)(source(AGE, path=str(path))))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 64 * MIB


def test_file_with_too_many_rows_is_not_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    pl.DataFrame({"age": pl.repeat(1, 9 * MIB, dtype=pl.Int64, eager=True)}).write_parquet(path)
    assert path.stat().st_size < MIB
    assert FilePart.open(local_files(str(path))[0]).row_count_from_metadata() == 9 * MIB
    assert cause(lambda: reader(tmp_path)(source(AGE, path=str(path)))) == "larger than SOTTO_TABLE_BYTES"


def test_table_of_equal_rows_takes_its_codes_once(tmp_path: Path) -> None:
    """The codes of fifty million equal rows are in memory once, and are read, fingerprinted, counted and grouped in blocks."""
    path = tmp_path / "people.parquet"
    pl.select(pl.repeat(1, 50_000_000, dtype=pl.UInt8).alias("age")).write_parquet(path)
    assert path.stat().st_size < MIB
    program = (
        "import resource, sys; from pathlib import Path; from stream.tables.store import TableStore; "
        "from tests.unit.tables.readers.guarded import AGE, reader; from tests.unit.tables.small import source; "
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10; "
        "read = reader(Path(sys.argv[1]).parent, table=64 << 20, reading=1 << 30); "
        "asked = source(AGE, path=sys.argv[1]); begun = most(); "
        "store = TableStore(bytes(32), read=read, stamp=read.stamp); "
        "table = store.get(asked, store.fingerprint(asked)); every = store.predicate(asked, 'TRUE'); "
        "counts = table.group_counts(['age'], every); "
        "print(table.count(every), int(counts.sum()), most() - begun)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    counted, grouped, grown = map(int, done.stdout.split())
    assert counted == grouped == 50_000_000
    assert grown < 1.8 * 50_000_000


def test_guarded_reader_works_within_lower_process_limits(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age\n1\n")
    program = (
        "import resource, sys; from pathlib import Path; from tests.unit.tables.readers.guarded import AGE, reader; from tests.unit.tables.small import source; "
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); resource.setrlimit(resource.RLIMIT_CPU, (30, 30)); "
        "read = reader(Path(sys.argv[1]).parent, reading=2 << 30, seconds=120.0); "
        "print(read(source(AGE, path=sys.argv[1])).file_row_count)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "1"


def test_file_above_reading_limit_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(b"age\n" + b"1\n" * MIB)
    monkeypatch.delattr(subprocess, "Popen")
    assert cause(lambda: reader(tmp_path, reading=MIB)(source(AGE, path=str(path)))) == (
        "larger than SOTTO_TABLE_READING_BYTES"
    )


def test_table_above_memory_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(b"age\n" + b"1\n" * 3 * MIB)
    roomy, narrow = (reader(tmp_path, table=size, reading=1 << 30) for size in (3 * MIB, 3 * MIB - 1))
    assert roomy(source(AGE, path=str(path))).file_row_count == 3 * MIB
    found = cause(partial(narrow, source(AGE, path=str(path))))
    assert found == "larger than SOTTO_TABLE_BYTES"


def test_reading_process_gets_no_secrets_and_no_local_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []
    popen = subprocess.Popen

    def record_environment(*arguments: object, **options: object) -> object:
        given.append(options["env"])  # type: ignore[arg-type]
        return popen(*arguments, **options)  # type: ignore[call-overload]

    (tmp_path / "polars.py").write_text("raise SystemExit(9)")
    (tmp_path / "people.csv").write_text("age\n1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOTTO_NOISE_KEY", "secret")
    monkeypatch.setattr(subprocess, "Popen", record_environment)
    assert reader(tmp_path)(source(AGE, path="people.csv")).file_row_count == 1
    assert [name for environment in given for name in environment if name.startswith("SOTTO_")] == []


def test_reading_process_gets_credentials_of_its_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"SOTTO_NOISE_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSFILE", "HTTPS_PROXY", "HOME", "KUBERNETES_TOKEN"}
    for name in secrets:
        monkeypatch.setenv(name, "secret")

    def secrets_given(path: str) -> set[str]:
        return secrets & set(reading_module._environment(source(AGE, path=path)))

    assert secrets_given("/data/people.csv") == set()
    assert secrets_given("s3://clinic/people.csv") == {"AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "HOME"}
    assert secrets_given("postgresql://db/clinic/public/people") == {"PGPASSFILE", "HOME"}


def test_drivers_are_imported_only_for_their_addresses() -> None:
    program = (
        "import sys; import stream.tables, stream.services.runner, stream.tables.readers.reading_process, stream.tables.readers.reading_protocol; "
        "print(sorted({'boto3', 'botocore', 'adbc_driver_manager', 'adbc_driver_postgresql', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "package", "extra"),
    [
        ("s3://clinic/a.csv", "boto3", "s3"),
        ("postgresql://db/clinic/public/a", "adbc_driver_postgresql", "postgresql"),
    ],
)
def test_missing_driver_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, package: str, extra: str
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('none', name='{package}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    read = GuardedReader(ReadingLimits.parse(path, table_bytes=MIB, reading_bytes=1 << 30, seconds=60.0))
    found = cause(lambda: read(source(AGE, path=path)))
    assert found == f"{package} is not installed; run: pip install 'sotto-dp[{extra}]'"


def test_missing_column_is_named_as_declared(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("name\nAlice\n")
    with pytest.raises(TableDataError, match="no column 'age'") as refused:
        reader(tmp_path)(source(AGE, path=str(tmp_path / "people.csv")))
    assert "Alice" not in str(refused.value)


def test_refusal_has_cause_only_if_deployment_reveals_causes(tmp_path: Path) -> None:
    """The refusal of a table is one sentence for all causes, unless ``reveals_causes`` is set: then it names cause and remedy."""
    inside = tmp_path / "tables"
    inside.mkdir()
    (tmp_path / "people.csv").write_text("age\n1\n")
    (inside / "large.csv").write_text("age\n" + "1\n" * 2000)
    (inside / "quote.csv").write_text('age,note\n1,27"\n')
    (inside / "people.txt").write_text("age\n1\n")
    found = {}
    for name in ("../people.csv", "none.csv", "large.csv", "quote.csv", "people.txt"):
        asked = source(AGE, path=str(inside / name))
        cause(partial(reader(inside, table=1000), asked))
        with pytest.raises(TableDataError) as refused:
            reader(inside, table=1000, reveals_causes=True)(asked)
        found[name] = str(refused.value).removeprefix("path: no table can be read there: ")
    kinds = (
        "give a well-formed .csv, .csv.gz or .parquet file, a folder of them with '/' at its end, or an address"
    )
    assert found == {
        "../people.csv": "outside SOTTO_TABLE_ROOTS; move the table below one of these folders or addresses, or ask the operator to add "
        "the table's",
        "none.csv": f"missing; {kinds}",
        "large.csv": 'larger than SOTTO_TABLE_BYTES; raise that limit, or register a new source over it with "engine": "duckdb"',
        "quote.csv": "a stray quote; put cells with quotes, commas or newlines in quotes, and double their own quotes",
        "people.txt": f"not a .csv, .csv.gz or .parquet file; {kinds}",
    }


def test_file_of_a_folder_is_named_but_not_to_callers(tmp_path: Path) -> None:
    """The service's log names the file that lacks a column or is malformed; so do errors without a service."""
    for day, text in {"1": "age,sex\n1,F\n", "2": "sex\nF\n", "3": "age,sex\n3,F\n"}.items():
        (tmp_path / day).mkdir()
        (tmp_path / day / "people.csv").write_text(text)
    asked = source(AGE, path=f"{tmp_path}/")
    with pytest.raises(TableDataError, match=r"^file '2/people.csv' has no column 'age'; add it"):
        Rows.load(asked)
    with pytest.raises(TableDataError, match=r"^the table has no column 'age'; add it"), capture_logs() as logged:
        reader(tmp_path)(asked)
    assert "'2/people.csv'" in logged[0]["cause"]
    (tmp_path / "2" / "people.csv").write_text('age,sex\n1,"F\n')
    with pytest.raises(TableDataError, match=r"'2/people.csv': a stray quote"):
        Rows.load(asked)
    with capture_logs() as logged, pytest.raises(TableDataError, match=r"^path: no table can be read there; give"):
        reader(tmp_path)(asked)
    assert logged[0]["file"] == "2/people.csv"


def test_column_of_unreadable_type_is_refused_by_type_name(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    pl.DataFrame({"age": [{"Alice": 34}]}).write_parquet(path)
    for domain, wanted in (
        (AGE["age"], "numbers, text or booleans; write it as numbers"),
        (Categories(values=("34",)), "text, whole or floating numbers, or booleans; write it as text"),
    ):
        with pytest.raises(TableDataError) as refused:
            reader(tmp_path)(source({"age": domain}, path=str(path)))
        assert str(refused.value) == f"column 'age' has type Struct, not {wanted}"


def test_reading_limits_split_folders_like_path() -> None:
    limits = ReadingLimits.parse(f"/a{os.pathsep}{os.pathsep}/b", table_bytes=1, reading_bytes=1, seconds=1.0)
    assert limits.roots == (Path("/a"), Path("/b"))
    assert ReadingLimits.parse("", table_bytes=1, reading_bytes=1, seconds=1.0).roots == ()


def test_guarded_reader_keeps_categories(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("x\nä\n\n?\n")
    declared: TableSource = source(
        {"x": Categories(values=("ä", "?"), other="?")}, path=str(tmp_path / "people.csv")
    )
    assert reader(tmp_path)(declared).private_codes["x"].tolist() == [0, 1, 1]
