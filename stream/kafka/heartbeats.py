"""A service process's word that it runs, for the monitor; nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas import MemberStatus
from stream.kafka.looking import only_looking
from stream.kafka.roles import Role
from stream.kafka.security import connection
from stream.log import get_logger
from stream.settings import Settings
from stream.version import VERSION

INTERVAL: Final = 10.0
"""Seconds between two words."""

KEY_PREFIX: Final = "@member|"

_STATM: Final = Path("/proc/self/statm")
_LEAVING_SECONDS: Final = 3.0

log = get_logger("service")


async def heartbeats(settings: Settings, role: Role, started: float) -> None:
    """Tell the status topic until cancelled that this process runs, and take it back at the end.

    Whatever Kafka's state, the service goes on: a word that cannot be said is left out.
    """
    told = False
    while True:
        producer: AIOKafkaProducer | None = None
        try:
            # Secrets are read anew at each connection: their files may be in the middle of being replaced.
            producer = AIOKafkaProducer(**connection(settings))
            only_looking(producer.client)
            await producer.start()
            while True:
                await producer.send_and_wait(role.status, key=_key(role), value=_word(role, started))
                told = True
                await asyncio.sleep(INTERVAL)
        except (KafkaError, OSError) as error:
            log.warning("cannot say that this process runs", role=role.name, error=type(error).__name__)
            await asyncio.sleep(INTERVAL)
        except asyncio.CancelledError:
            if told:
                await _take_back(producer, role)
            raise
        finally:
            if producer is not None:
                await producer.stop()


async def _take_back(producer: AIOKafkaProducer, role: Role) -> None:
    try:
        async with asyncio.timeout(_LEAVING_SECONDS):
            await producer.send_and_wait(role.status, key=_key(role), value=None)
    except (KafkaError, OSError, TimeoutError):
        log.info("could not take back that this process runs", role=role.name)


def _key(role: Role) -> bytes:
    return f"{KEY_PREFIX}{role.member}".encode()


def _word(role: Role, started: float) -> bytes:
    status = MemberStatus(
        role=role.name, member=role.member, version=VERSION, started=started, memory=resident_bytes()
    )
    return status.model_dump_json().encode()


def resident_bytes() -> int:
    """The memory that this process takes up now; where the system does not tell, the most that it ever took."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
