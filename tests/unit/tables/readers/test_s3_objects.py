"""Tables in a store with S3's protocol give the same rows as files, all of one moment and only from allowed places."""

from __future__ import annotations

import gzip
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake

from schemas import Address, Categories, Domain, Integers, TableSource
from stream.tables import store as store_module
from stream.tables.checks import check_table
from stream.tables.readers.lake_files import _client
from stream.tables.readers.source_parts import open_table_parts, stamp_of
from stream.tables.readers.table_files import parse_roots
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import Rows
from stream.tables.store import TableStore
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.readers import guarded
from tests.unit.tables.readers.delta_logs import INLINE, deleting, rewrite
from tests.unit.tables.readers.guarded import rows_of
from tests.unit.tables.readers.iceberg_tables import IcebergCatalog, delete_positions, metadata_of
from tests.unit.tables.readers.servers import STORE_SECRET, let_into_the_store
from tests.unit.tables.small import KEY, source

ATTRIBUTES: dict[str, Domain] = {
    "x": Integers(minimum=0, maximum=9),
    "year": Integers(minimum=2020, maximum=2029),
    "ward": Categories(values=("A/B", "C")),
}
PLAIN = ("x,year,ward\n1,2023,C\n\n2,2024,A/B\n", [(1, 3, 1), (2, 4, 0)])
declared = partial(source, ATTRIBUTES)


@dataclass(frozen=True)
class Bucket:
    name: str
    client: Any
    folder: Path

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def put_parquet(self, key: str, cells: dict[str, list[Any]]) -> None:
        path = self.folder / "object.parquet"
        pl.DataFrame(cells).write_parquet(path)
        self.put(key, path.read_bytes())

    def address(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def put_visits(self) -> None:
        self.put("visits/", b"")
        self.put("visits/_SUCCESS", b"")
        self.put_parquet("visits/year=2024/ward=C/b%20.parquet", {"x": [5]})
        self.put_parquet("visits/year=2023/ward=A%2FB/a.parquet", {"x": [1, 2]})


@pytest.fixture
def bucket(store_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket, with credentials in files that variables name, as in a deployment."""
    let_into_the_store(store_address, tmp_path, monkeypatch)
    _client.cache_clear()
    name = f"clinic-{uuid.uuid4().hex}"
    _client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return Bucket(name, _client(), tmp_path)


def test_s3_client_uses_configuration_of_its_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="boto3, the extra s3, is not installed")
    for address in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        let_into_the_store(address, tmp_path, monkeypatch)
        _client.cache_clear()
        assert _client().meta.endpoint_url == address
    _client.cache_clear()


cause = partial(guarded.cause, secret=STORE_SECRET)


def reader(*roots: str, reading: int = 1 << 30) -> GuardedReader:
    return GuardedReader(ReadingLimits(parse_roots(":".join(roots)), 8 << 20, reading, 120.0))


@pytest.mark.parametrize("key", ["visits/", "visits/year=*/", "visits/**/*.parquet"])
def test_s3_folder_is_read_like_local_folder(bucket: Bucket, key: str) -> None:
    bucket.put_visits()
    assert rows_of(reader(bucket.address())(declared(bucket.address(key)))) == [(1, 3, 0), (2, 3, 0), (5, 4, 1)]


@pytest.mark.parametrize("key", ["plain.csv", "plain.csv.gz", "plain.parquet"])
def test_s3_objects_are_read_like_files(bucket: Bucket, key: str) -> None:
    text, rows = PLAIN
    bucket.put("plain.csv", text.encode())
    bucket.put("plain.csv.gz", gzip.compress(text.encode()))
    bucket.put_parquet(
        "plain.parquet", {"ward": ["C", None, "A/B"], "x": [1, None, 2], "year": [2023, None, 2024]}
    )
    found = reader(bucket.address(key))(declared(bucket.address(key)))
    assert rows_of(found) == rows
    assert found.file_row_count == 3


def test_s3_requests_stay_within_roots(bucket: Bucket) -> None:
    bucket.put_visits()
    bucket.put("visits-secret/a.csv", PLAIN[0].encode())
    for root in (
        bucket.address("visits-secret/"),
        "s3://another-bucket",
        str(bucket.folder),
        "postgresql://clinic",
    ):
        for key in ("visits/", "visits/year=2023/", "*/", "**/*.parquet", ""):
            found = cause(partial(reader(root), declared(bucket.address(key))))
            assert found == "outside SOTTO_TABLE_ROOTS"
    assert (
        reader("s3://another-bucket", bucket.address("visits"))(declared(bucket.address("visits/"))).file_row_count
        == 3
    )


def test_s3_object_with_dots_as_folder_is_refused(bucket: Bucket) -> None:
    bucket.put("visits/../secret.csv", PLAIN[0].encode())
    assert cause(lambda: reader(bucket.address("visits"))(declared(bucket.address("visits/")))) == (
        "a file in the folder has an empty name, or '.' or '..' as a name; rename it"
    )


def test_s3_error_code_is_only_in_log(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    read = reader(bucket.address(), "s3://no-such-bucket")
    assert cause(lambda: read(declared("s3://no-such-bucket/a.csv"))) == "the store refused: NoSuchBucket"
    assert cause(lambda: read(declared(bucket.address("a.csv")))) == "missing"
    assert cause(lambda: read(declared(bucket.address("a/")))) == "missing"
    bucket.put_visits()
    assert cause(lambda: reader(bucket.address(), reading=1 << 8)(declared(bucket.address("visits/"))))
    bucket.put("broken.parquet", b"PAR1 no table PAR1")
    assert cause(lambda: read(declared(bucket.address("broken.parquet")))).startswith("its format")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = cause(lambda: read(declared(bucket.address("visits/"))))
    assert found == "the store was not reached: EndpointConnectionError"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert cause(lambda: read(declared(bucket.address("visits/")))) == "the store was not reached: ProfileNotFound"


def test_s3_objects_together_are_limited_in_size(bucket: Bucket) -> None:
    bucket.put_visits()
    address = Address.parse_table(bucket.address("visits/"))
    assert address is not None
    with pytest.raises(UnreadableError) as refused:
        list(open_table_parts(bucket.address("visits/"), most_bytes=100))
    assert refused.value.cause == "larger than SOTTO_TABLE_READING_BYTES"


def test_s3_table_that_changes_while_read_is_refused(bucket: Bucket) -> None:
    bucket.put_visits()
    parts = open_table_parts(bucket.address("visits/"))
    next(parts)
    bucket.put_parquet("visits/year=2025/ward=C/c.parquet", {"x": [1]})
    with pytest.raises(UnreadableError) as refused:
        list(parts)
    assert refused.value.cause == "changed while it was read"


def test_store_refuses_objects_other_than_registered(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store reads a table once, keeps it, and refuses other objects until the registered ones are back."""
    bucket.put_visits()
    reads = []

    def count_reads(asked: TableSource) -> Rows:
        reads.append(asked.path)
        return Rows.load(asked)

    visits = declared(bucket.address("visits/"))
    budget = TableStore(KEY, read=count_reads)
    registered = budget.fingerprint(visits)
    assert budget.fingerprint(visits) == registered
    assert len(reads) == 1
    assert TableStore(KEY, read=count_reads).get(visits, registered).private_row_count == 3
    bucket.put_parquet("visits/year=2024/ward=C/b%20.parquet", {"x": [6]})
    assert budget.get(visits, registered).private_row_count == 3
    refreshed = budget.fingerprint(visits, version=2)
    assert budget.get(visits, refreshed, version=2).private_row_count == 3
    late = TableStore(KEY, read=count_reads)
    reads.clear()
    for _ in range(3):
        with pytest.raises(TableDataError, match="differs from what was registered"):
            late.get(visits, registered)
    assert len(reads) == 1
    assert late.get(visits, refreshed, version=2).private_row_count == 3
    bucket.put_parquet("visits/year=2024/ward=C/b%20.parquet", {"x": [5]})
    monkeypatch.setattr(store_module, "RETRY_SECONDS", 0.0)
    assert late.get(visits, registered).private_row_count == 3


def test_guarded_reader_recognizes_registered_objects(bucket: Bucket) -> None:
    """Stamps and rows from reading processes let a store recognize the registered objects and refuse others."""
    bucket.put_visits()
    guarded, reads = reader(bucket.address()), []

    def count_reads(asked: TableSource) -> Rows:
        reads.append(asked.path)
        return guarded(asked)

    visits = declared(bucket.address("visits/"))
    store = TableStore(KEY, read=count_reads, stamp=guarded.stamp)
    registered = store.fingerprint(visits)
    assert registered == TableStore(KEY).fingerprint(visits)
    assert store.fingerprint(visits) == registered
    assert len(reads) == 1
    assert store.get(visits, registered).private_row_count == 3
    bucket.put_parquet("visits/year=2024/ward=C/b%20.parquet", {"x": [6]})
    with pytest.raises(TableDataError, match="differs from what was registered"):
        TableStore(KEY, read=guarded, stamp=guarded.stamp).get(visits, registered)


def test_s3_folder_has_fingerprint_of_local_folder(bucket: Bucket) -> None:
    bucket.put_visits()
    for key, cells in {"year=2024/ward=C/b.parquet": [5], "year=2023/ward=A%2FB/a.parquet": [1, 2]}.items():
        path = bucket.folder / "visits" / key
        path.parent.mkdir(parents=True)
        pl.DataFrame({"x": cells}).write_parquet(path)
    store = TableStore(KEY)
    assert store.fingerprint(declared(bucket.address("visits/"))) == store.fingerprint(
        declared(f"{bucket.folder}/visits/")
    )


def test_s3_delta_table_is_read_by_its_log(bucket: Bucket) -> None:
    folder = bucket.folder / "visits"
    for mode, x in (("append", 9), ("overwrite", 1), ("append", 2)):
        cells = pl.DataFrame({"x": [x], "year": [2023], "ward": ["A/B"]})
        write_deltalake(folder, cells, mode=mode, partition_by=["ward"])  # type: ignore[call-overload]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        bucket.put(f"visits/{path.relative_to(folder)}", path.read_bytes())
    read = reader(bucket.address("visits"))
    assert sorted(rows_of(read(declared(bucket.address("visits/"))))) == [(1, 3, 0), (2, 3, 0)]
    store = TableStore(KEY)
    assert store.fingerprint(declared(bucket.address("visits/"))) == store.fingerprint(declared(f"{folder}/"))
    before = read.stamp(declared(bucket.address("visits/")))
    assert before == stamp_of(bucket.address("visits/"))
    assert len(before) == 2
    newest = "visits/_delta_log/00000000000000000002.json"
    bucket.put(newest, (folder / "_delta_log" / newest[-25:]).read_bytes().replace(b'"ward=', b'"../ward='))
    found = cause(lambda: read(declared(bucket.address("visits/"))))
    assert found == "its log names a file that is not in its folder"
    rewrite(folder, deleting(INLINE))
    bucket.put(newest, (folder / "_delta_log" / newest[-25:]).read_bytes())
    assert sorted(rows_of(read(declared(bucket.address("visits/"))))) == [(1, 3, 0)]
    assert stamp_of(bucket.address("visits/")) != before
    bucket.put(newest, b"no log")
    with pytest.raises(UnreadableError) as refused:
        stamp_of(bucket.address("visits/"))
    assert refused.value.cause.startswith("its Delta log cannot be read")


def test_s3_iceberg_version_is_read_from_its_folder(bucket: Bucket) -> None:
    """The version has the rows and the fingerprint of the same version on disk."""
    table = IcebergCatalog(bucket.folder).create(
        pl.DataFrame({"x": [1, 2], "year": [2023, 2024], "ward": ["C", "A/B"]})
    )
    version = metadata_of(table)
    delete_positions(table, {task.file.file_path: [1] for task in table.scan().plan_files()})
    folder = version.parents[1]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        bucket.put(f"visits/{path.relative_to(folder)}", path.read_bytes())
    address = bucket.address(f"visits/metadata/{version.name}")
    read = reader(bucket.address("visits"))
    assert rows_of(read(declared(address))) == [(1, 3, 1)]
    store = TableStore(KEY)
    assert store.fingerprint(declared(address)) == store.fingerprint(declared(str(version)))
    assert read.stamp(declared(address)) == stamp_of(address)
    bucket.client.delete_object(Bucket=bucket.name, Key="visits/data/deletions.parquet")
    found = cause(lambda: read(declared(address)))
    assert found == "its metadata names a file that is not in its folder"


def test_check_reads_s3_objects(bucket: Bucket) -> None:
    bucket.put_visits()
    report = check_table(declared(bucket.address("visits/")))
    assert (report.rows, report.as_declared) == (3, 3)
    assert report.path == bucket.address("visits/")
