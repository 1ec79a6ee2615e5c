"""A service whose clock is hours ahead still answers and charges, with broker timestamps and with writers' timestamps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_creation import check_topics
from stream.kafka.topic_layouts import Difference, layout
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import Topics
from stream.services.processes import Service
from stream.settings import Settings
from tests.chaos.loaded_installation import crippled, open_installation

pytestmark = pytest.mark.kafka

AHEAD = 7_200


async def use_writers_timestamps(settings: Settings) -> None:
    """Configure all topics as earlier versions made them, with writers' timestamps."""
    topics = Topics(settings.prefix, settings.partitions)
    async with admin_client(settings) as admin:
        for one in layout(topics):
            old = {**one.configuration, "message.timestamp.type": "CreateTime"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, one.name, old)])


@pytest.mark.parametrize("made", ["stamped by the broker", "stamped by writers"])
async def test_services_with_clock_two_hours_ahead_continue(
    made: str, settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    old = made == "stamped by writers"
    if old:
        await use_writers_timestamps(settings)
    async with open_installation(settings, key, tmp_path) as installation:
        with crippled(clock_ahead=AHEAD):
            services = [installation.start("budget"), installation.start("worker")]
        installation.injected["clocks two hours ahead"] += len(services)
        await installation.open()
        await installation.ask(500)
        await installation.answered()
        # A worker with a correct clock inherits the changelog that they wrote.
        services[1].kill()
        installation.start("worker")
        await installation.ask(500)
        await installation.answered()
        await installation.verified()
        for service in services:
            log = await asyncio.to_thread(service.log.read_text)
            assert ("clock refused" in log) is old
            assert ("InvalidTimestampError" in log) is old
            assert log.count('"error": "InvalidTimestampError"') <= settings.partitions
        differences = [one for one in await check_topics(settings) if one.setting == "message.timestamp.type"]
        expected = Difference(
            settings.prefix + ".queries", "message.timestamp.type", "LogAppendTime", "CreateTime"
        )
        assert (expected in differences) is old


async def test_record_clock_half_an_hour_ahead_is_accepted(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    await use_writers_timestamps(settings)
    async with open_installation(settings, key, tmp_path) as installation:
        with crippled(clock_ahead=1_800):
            services: list[Service] = [installation.start("budget"), installation.start("worker")]
        await installation.open()
        await installation.ask(100)
        await installation.answered()
        for service in services:
            assert "clock refused" not in await asyncio.to_thread(service.log.read_text)
        await installation.verified()
