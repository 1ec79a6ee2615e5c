"""Services on a real broker read tables from an S3 store and from PostgreSQL, and reveal their credentials to nobody."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.settings import Settings
from stream.tables.readers.lake_files import _client
from tests.builders import source, stream
from tests.chaos.checker import committed
from tests.conftest import StartService
from tests.unit.tables.readers.servers import (
    READER,
    STORE_SECRET,
    database_server,
    let_into_the_database,
    let_into_the_store,
    object_store,
)

pytestmark = pytest.mark.kafka

AGES = [20 + number % 50 for number in range(300)]
MORE_AGES = [*AGES, 33]


@dataclass(frozen=True)
class Place:
    """The place of a table: services may read ``root``, ``put`` replaces the table, and ``secret`` gives access to it."""

    root: str
    address: str
    put: Callable[[list[int]], None]
    secret: str


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "s3":
        with object_store() as store:
            let_into_the_store(store, tmp_path, monkeypatch)
            _client.cache_clear()
            name = f"clinic-{uuid.uuid4().hex}"
            _client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

            def put_object(ages: list[int]) -> None:
                body = "age\n" + "".join(f"{age}\n" for age in ages)
                _client().put_object(Bucket=name, Key="people.csv", Body=body.encode())

            yield Place(f"s3://{name}/", f"s3://{name}/people.csv", put_object, STORE_SECRET)
            _client.cache_clear()
        return
    with database_server() as server:
        let_into_the_database(server, tmp_path, monkeypatch)

        def put_rows(ages: list[int]) -> None:
            rows = ", ".join(f"({age})" for age in ages)
            server.execute(
                "DROP TABLE IF EXISTS people",
                "CREATE TABLE people (age smallint)",
                f"INSERT INTO people VALUES {rows}",  # noqa: S608
            )

        address = server.address("people")
        yield Place(address.removesuffix("people"), address, put_rows, READER)


@pytest.fixture
def settings(settings: Settings, place: Place) -> Settings:
    """Return settings with which services may read this place and no other."""
    return settings.model_copy(update={"table_roots": place.root})


@pytest.mark.parametrize("place", ["s3", "postgresql"], indirect=True)
async def test_worker_answers_from_table_at_address_and_refuses_other_rows(
    settings: Settings, place: Place, client: AsyncClient, start: StartService
) -> None:
    place.put(AGES)
    services = [start("budget"), start("worker")]
    await client.register(source("people", "table", epsilon=100.0, path=place.address, attributes={"age": 100}))
    await client.open(stream("counts", "people", "laplace", mechanism={"answers": 5}, epsilon=50.0))
    for where, wanted in (("age < 45", sum(age < 45 for age in AGES)), ("age >= 0", len(AGES))):
        answer = await client.ask({"stream": "counts", "where": where})
        assert answer.alpha is not None
        assert answer.alpha < 5
        assert abs((answer.estimate or 0.0) - wanted) <= answer.alpha + 1
    # A restarted worker finds other rows at the address, and does not answer from them.
    place.put(MORE_AGES)
    services[1].kill()
    services.append(start("worker"))
    answer = await client.ask({"stream": "counts", "where": "age < 45"}, outcomes=True)
    assert answer.outcome == "halted"
    secret = place.secret.encode()
    assert not [one.log for one in services if secret in one.log.read_bytes()]
    topics = client.topics
    for topic, partitions in ((topics.ledger, 1), (topics.trail, 1), (topics.control, topics.partitions)):
        for number in range(partitions):
            assert not [one for one in await committed(settings, topic, number) if secret in (one.value or b"")]
