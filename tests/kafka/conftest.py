"""One broker that asks who is there, for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.secured import MATRIX, SecuredKafka


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    started = SecuredKafka.start(tmp_path_factory.mktemp("secured"))
    try:
        yield started
    finally:
        started.broker.stop()


@pytest.fixture(scope="package")
def matrix(kafka: SecuredKafka) -> SecuredKafka:
    """With topics, users and access lists, but without services: anything may be written to it."""
    kafka.install(MATRIX)
    return kafka
