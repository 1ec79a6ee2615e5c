"""Addresses of tables have one form each, and never show a secret."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from schemas import Address, Integers, TableSource
from schemas.wire import describe


def source(path: str) -> TableSource:
    return TableSource(
        kind="table",
        source="visits",
        neighbors="add-remove",
        epsilon=1.0,
        path=path,
        attributes={"x": Integers(minimum=0, maximum=2)},
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://clinic/visits/2024.parquet", ("visits", "2024.parquet")),
        ("s3://clinic/visits/", ("visits",)),
        ("s3://clinic/", ()),
        ("s3://clinic/visits/year=*/**/*.csv.gz", ("visits", "year=*", "**", "*.csv.gz")),
        ("postgresql://db.internal/clinic/public/visits", ("clinic", "public", "visits")),
        ("postgresql://db.internal:6432/clinic/public/visits", ("clinic", "public", "visits")),
        ("spark://spark.internal/lake/clinic/visits@12", ("lake", "clinic", "visits")),
        ("trino://trino.internal:8080/hive/clinic/visits", ("hive", "clinic", "visits")),
        ("clickhouse://ch.internal:8123/clinic/visits", ("clinic", "visits")),
        ("bigquery://my-project/clinic/visits", ("clinic", "visits")),
        ("snowflake://org-account/CLINIC/PUBLIC/VISITS", ("CLINIC", "PUBLIC", "VISITS")),
        ("databricks://adb-1.azuredatabricks.net/main/clinic/visits", ("main", "clinic", "visits")),
    ],
)
def test_address_is_divided_into_parts(text: str, parts: tuple[str, ...]) -> None:
    address = Address.parse_table(text)
    assert address is not None
    assert address.parts == parts
    assert source(text).path == text


@pytest.mark.parametrize(
    "text", ["/data/visits.csv", "visits.csv", "C:/visits.csv", "/data/s3:/x.csv", "/d/%2e.csv"]
)
def test_address_without_scheme_is_a_path(text: str) -> None:
    assert Address.parse_table(text) is None
    assert source(text).path == text


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader:hunter2@db/clinic/public/visits",
        "postgresql://hunter2@db/clinic/public/visits",
        "postgresql://db/clinic/public/visits?password=hunter2",
        "postgresql://db/clinic/public/visits?options=hunter2",
        "postgres://reader:hunter2@db/clinic/public/visits",
        "s3://key:hunter2@clinic/visits.csv",
        "s3://clinic@hunter2/visits.csv",
        "https://clinic.example/visits.csv?X-Amz-Signature=hunter2",
        " s3://key:hunter2@clinic/visits.csv",
        "file:///hunter2",
        "gs://hunter2/visits.csv",
        "S3://hunter2/visits.csv",
        "s3://Hunter2/visits.csv",
        "s3://hunter2:9000/visits.csv",
        "s3://hunter2",
        "s3://hunter2/../other/visits.csv",
        "s3://hunter2/./visits.csv",
        "s3://hunter2//visits.csv",
        "s3://hunter2/a%2e%2e/visits.csv",
        "s3://hunter2/visits.csv#x",
        "s3://hunter2/visits\\x.csv",
        "s3://hunter2/a b.csv",
        "s3://hunter2/[a-z].csv",
        "s3://hunter2/\uff0e\uff0e/visits.csv",
        "s3://hunter2/visits.csv\n",
        "postgresql:///clinic/public/hunter2",
        "postgresql://a,b/clinic/public/hunter2",
        "postgresql://DB/clinic/public/hunter2",
        "postgresql://[::1]/clinic/public/hunter2",
        "postgresql://db:05432/clinic/public/hunter2",
        "postgresql://db:65536/clinic/public/hunter2",
        "postgresql://db/clinic/hunter2",
        "postgresql://db/clinic/public/hunter2/",
        "postgresql://db/clinic/public/hunter*",
        "postgresql://db/dbname=x/public/hunter2",
        "postgresql://db/clinic/pub'lic/hunter2",
        "postgresql://db/clinic/public/visits@hunter2",
        "postgresql://db/clinic/public/visits@12",
        "spark://db/clinic/public/visits@hunter2",
        "spark://db/clinic/public/visits@12@hunter2",
        "spark://token:hunter2@db/clinic/public/visits",
        "spark://db/;token=hunter2/clinic/visits",
        "clickhouse://db/clinic/public/hunter2",
        "bigquery://my-project:443/clinic/hunter2",
        "snowflake://account/clinic/hunter2",
    ],
)
def test_malformed_address_is_refused_without_a_quote(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        source(text)
    message = describe(refused.value)
    assert message.startswith("path: ")
    assert "hunter2" not in str(refused.value) + message


def test_address_with_a_password_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match="no user and no password in an address, because it is public"):
        source("postgresql://reader:secret@db/clinic/public/visits")


@pytest.mark.parametrize(
    ("root", "text", "below"),
    [
        ("s3://clinic/visits", "s3://clinic/visits/a.csv", True),
        ("s3://clinic/visits/", "s3://clinic/visits/*/a.csv", True),
        ("s3://clinic/visits/a.csv", "s3://clinic/visits/a.csv", True),
        ("s3://clinic/visits", "s3://clinic/visits-secret/a.csv", False),
        ("s3://clinic/visits", "s3://clinic/visit*/a.csv", False),
        ("s3://clinic/visits", "s3://clinic/*/a.csv", False),
        ("s3://clinic/visits", "s3://clinic/**/a.csv", False),
        ("s3://clinic/visits", "s3://clinic/", False),
        ("s3://clinic/visits", "s3://clinic.evil/visits/a.csv", False),
        ("s3://clinic", "s3://clinic2/a.csv", False),
        ("s3://clinic/visits", "s3://clinic/Visits/a.csv", False),
        ("postgresql://db/clinic/public", "postgresql://db:5432/clinic/public/visits", True),
        ("postgresql://db", "postgresql://db/clinic/public/visits", True),
        ("postgresql://db/clinic/public", "postgresql://db:5433/clinic/public/visits", False),
        ("postgresql://db/clinic/public", "postgresql://db.evil/clinic/public/visits", False),
        ("postgresql://db/clinic/public", "postgresql://db/clinic/public2/visits", False),
        ("postgresql://clinic/visits", "s3://clinic/visits/a.csv", False),
        ("spark://db/lake/clinic/visits", "spark://db:15002/lake/clinic/visits@12", True),
        ("spark://db/lake", "trino://db/lake/clinic/visits", False),
    ],
)
def test_root_covers_the_parts_below_it(root: str, text: str, below: bool) -> None:
    address = Address.parse_table(text)
    assert address is not None
    assert address.is_below(Address.parse_root(root)) == below
