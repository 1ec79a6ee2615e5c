"""Records Java's startup cache: brokers start with a third of the CPU time.

The ahead-of-time cache (JEP 514, 75 MB) is recorded while a broker starts and serves a rehearsal.
Java ignores a cache that does not fit.
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
    """Fetches Kafka and records the cache if they are missing; returns its path.

    Args:
        progress: Receives one line for each long step.

    Raises:
        BrokerError: If Kafka cannot be fetched or started, or Java writes no cache.
    """
    jars = prepare(progress)
    cache = start_cache(jars)
    with file_lock(cache.with_suffix(".lock"), _SECONDS):
        if cache.exists():
            return cache
        from aiokafka.errors import KafkaError  # noqa: PLC0415  (other commands for brokers do without clients)

        from stream.kafka.broker.rehearsal import serve  # noqa: PLC0415

        if progress is not None:
            progress("Starting Kafka once to record Java's startup cache")
        with tempfile.TemporaryDirectory(dir=jars) as folder:
            made = Path(folder) / "made.aot"
            broker = LocalBroker(Path(folder) / "broker", java_options=(f"-XX:AOTCacheOutput={made}",))
            running = broker.start(timeout=_SECONDS)
            # A cache without the rehearsal is useful, too.
            with suppress(KafkaError, OSError, TimeoutError):
                asyncio.run(serve(running.bootstrap))
            broker.stop(timeout=_SECONDS)  # Java writes the cache at its end
            if not made.exists():
                raise BrokerError("Java wrote no startup cache; brokers start without it, only slower")
            made.rename(cache)
    return cache
