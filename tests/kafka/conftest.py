"""One broker with authentication for the tests that need it; all tests here start preloaded services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.secured import MATRIX, SecuredKafka


@pytest.fixture(scope="module", autouse=True)
def _start_preloaded(preloaded: None) -> None:
    """Use the fixture `preloaded` in every module."""


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    started = SecuredKafka.start(tmp_path_factory.mktemp("secured"))
    try:
        yield started
    finally:
        started.broker.stop()


@pytest.fixture(scope="package")
def matrix(kafka: SecuredKafka) -> SecuredKafka:
    """A broker with topics, users and access lists but without services, so tests may write anything to it."""
    kafka.install(MATRIX)
    return kafka
