"""What Java remembers of a broker's start, in the cache folder: later brokers take a third of the processor's time to start.

It is Java's ahead-of-time cache (JEP 514), 75 MB, made by starting a broker once and having it serve a little of what ours are
for. Java checks that it fits, and does without it otherwise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stream.kafka.broker.broker_process import BrokerError, file_lock
from stream.kafka.broker.java_runtime import prepare
from stream.kafka.broker.local_broker import LocalBroker
from stream.kafka.broker.programs import start_cache

_SECONDS = 300.0


def warm_up(progress: Callable[[str], None] | None = None) -> Path:
    """Fetches Kafka unless it is there, makes that cache unless it is there, and returns its path.

    Args:
        progress: Is told, in one line each, what takes its time.

    Raises:
        BrokerError: If Kafka cannot be fetched or started, or Java makes no cache.
    """
    jars = prepare(progress)
    cache = start_cache(jars)
    with file_lock(cache.with_suffix(".lock"), _SECONDS):
        if cache.exists():
            return cache
        from aiokafka.errors import KafkaError  # noqa: PLC0415  (other commands for brokers do without clients)

        from stream.kafka.broker.rehearsal import serve  # noqa: PLC0415

        if progress is not None:
            progress("Starting Kafka once for Java to remember how")
        with tempfile.TemporaryDirectory(dir=jars) as folder:
            made = Path(folder) / "made.aot"
            broker = LocalBroker(Path(folder) / "broker", java_options=(f"-XX:AOTCacheOutput={made}",))
            running = broker.start(timeout=_SECONDS)
            # A broker that served nobody is remembered, too.
            with suppress(KafkaError, OSError, TimeoutError):
                asyncio.run(serve(running.bootstrap))
            broker.stop(timeout=_SECONDS)  # it is written at the end
            if not made.exists():
                raise BrokerError(
                    "Java remembers nothing of Kafka's start; brokers start all the same, only slower"
                )
            made.rename(cache)
    return cache
