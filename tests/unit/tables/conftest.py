from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.tables.readers.servers import (
    Database,
    clickhouse_server,
    database_server,
    object_store,
    spark_server,
)


@pytest.fixture(scope="session")
def store_address() -> Iterator[str]:
    with object_store() as address:
        yield address


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    with database_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[str]:
    with spark_server() as address:
        yield address


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[str]:
    with clickhouse_server() as address:
        yield address
