from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.data.servers import Database, database_server, object_store


@pytest.fixture(scope="session")
def store_address() -> Iterator[str]:
    with object_store() as address:
        yield address


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    with database_server() as server:
        yield server
