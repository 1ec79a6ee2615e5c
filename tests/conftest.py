"""Fixtures for all tests: one real broker for the whole run, and a separate installation for each test."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import process_time

import pytest
import structlog
from hypothesis import settings as property_settings

from sotto import AsyncClient
from stream.caches import reduce_gc_frequency
from stream.kafka.broker_process import file_lock
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from stream.tables.demo_tables import ADULT_PATH
from tests.chaos.loaded_installation import LoadedInstallation, open_installation
from tests.patience import lengthen_timeouts
from tests.preloaded import preloaded_readers, preloaded_services

# No deadline, because the time of an example depends on the machine's other work.
# Half of the usual examples: each run tries others.
property_settings.register_profile("patient", deadline=None, max_examples=50)
property_settings.load_profile("patient")
lengthen_timeouts()

# In a test, Java's optimizing compiler and parallel garbage collector cost more than they save.
os.environ.setdefault("SOTTO_BROKER_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UseG1GC -XX:+UseSerialGC")

pytest_plugins = ["tests.suites"]

HARD_WORK_SECONDS = 0.5


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection."""
    gc.collect()
    reduce_gc_frequency()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Collect garbage after a test with much work, because collections are rare and its reference cycles may have hundreds of megabytes."""
    begun = process_time()
    result = yield
    if process_time() - begun > HARD_WORK_SECONDS:
        gc.collect()
        gc.freeze()
    return result


StartService = Callable[[RoleName], Service]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Restore the log's configuration: a service logs to its command's standard error, which is closed at the command's end."""
    before, hooks = structlog.get_config(), (sys.excepthook, threading.excepthook)
    root, library = logging.getLogger(), logging.getLogger("aiokafka")
    levels, handlers = (root.level, library.level), list(root.handlers)
    yield
    structlog.configure(**before)
    sys.excepthook, threading.excepthook = hooks
    root.setLevel(levels[0])
    library.setLevel(levels[1])
    root.handlers[:] = handlers


@pytest.fixture(scope="session", autouse=True)
def _brokers_have_ports_of_their_own() -> Iterator[None]:
    """Give every broker a free port: a broker that restarts could lose the usual port to another test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stream.kafka.broker_addresses.DEFAULT_PORT", 0)
        yield


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the run's one broker; the process that started it kills it when all others have released the lock."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    broker = LocalBroker(folder / "shared-broker")
    with (folder / "broker.users").open("w") as users:
        with file_lock(folder / "broker.starting", 300):
            is_own = broker.status() is None
            running = broker.start(timeout=180)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield running.bootstrap
        if is_own:
            fcntl.flock(users, fcntl.LOCK_EX)
            # A clean stop would close thousands of partitions that are never read again.
            broker.kill()


@pytest.fixture
async def settings(bootstrap: str, tmp_path: Path) -> Settings:
    installation = Settings(
        bootstrap=bootstrap,
        prefix=f"test-{uuid.uuid4().hex[:8]}",
        session_timeout_ms=6000,
        table_roots=os.pathsep.join([str(tmp_path), str(ADULT_PATH.parent)]),
        table_bytes=64 << 20,
        table_reading_bytes=512 << 20,
    )
    await create_topics(installation)
    return installation


@pytest.fixture
def key() -> NoiseKey:
    return NoiseKey.generate()


@pytest.fixture
def start(settings: Settings, key: NoiseKey, tmp_path: Path) -> Iterator[StartService]:
    """Start services as processes; all are stopped at the end of the test."""
    key_file = tmp_path / "noise.key"
    key.save(key_file)
    with ExitStack() as stack:
        started: list[Service] = []

        def start_service(role: RoleName) -> Service:
            log = tmp_path / f"{role}-{len(started)}.log"
            service = stack.enter_context(Service(role, settings, key_file, log))
            started.append(service)
            return service

        yield start_service


@pytest.fixture(scope="module")
def preloaded() -> Iterator[None]:
    """Fork the services of a test module from a process with loaded imports; it takes a third of the processor time."""
    with preloaded_services():
        yield


@pytest.fixture(scope="module")
def forked_readers() -> Iterator[None]:
    """Fork the processes that read tables for the tests of a module."""
    with preloaded_readers():
        yield


@pytest.fixture
async def installation(settings: Settings, key: NoiseKey, tmp_path: Path) -> AsyncIterator[LoadedInstallation]:
    """Yield an installation under load on the shared broker."""
    async with open_installation(settings, key, tmp_path) as made:
        yield made


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(settings) as connected:
        yield connected
