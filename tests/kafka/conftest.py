"""One broker that asks who is there, for all tests that need one; and a ground per test, as chaos has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.conftest import ground, preloaded
from tests.kafka.secured import MATRIX, SecuredKafka

__all__ = ["ground", "preloaded"]


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
