"""If a broker refuses a time in the settings, the service ends and names the setting, because a retry would fail too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stream.engine.health import ServiceHealth
from stream.kafka.client.client_patches import RefusedTimeError
from stream.kafka.topic_creation import require_topics
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.services.runner import build_worker_engine
from stream.settings import Settings, variable_of

pytestmark = pytest.mark.kafka

PATIENCE = 60.0
REFUSED = [
    ("session_timeout_ms", 1500, "group.min.session.timeout.ms"),
    ("session_timeout_ms", 2_000_000, "group.max.session.timeout.ms"),
    ("transaction_timeout_ms", 1_000_000, "transaction.max.timeout.ms"),
]


@pytest.mark.parametrize(("field", "milliseconds", "bound"), REFUSED)
async def test_engine_ends_with_setting_and_brokers_limit(
    settings: Settings, key: NoiseKey, field: str, milliseconds: int, bound: str
) -> None:
    beyond = settings.model_copy(update={field: milliseconds})
    engine = build_worker_engine(beyond, await require_topics(settings), key, ServiceHealth("worker"))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RefusedTimeError, match=rf"^{variable_of(field)}: .* {milliseconds} ms; set .*{bound}"):
            await engine.run()


@pytest.mark.parametrize("role", ["worker", "alerts"])
def test_service_ends_with_line_about_refused_time(
    settings: Settings, key: NoiseKey, tmp_path: Path, role: RoleName
) -> None:
    key.save(tmp_path / "noise.key")
    targets = tmp_path / "alerts.json"
    target = {"name": "fires", "kind": "alertmanager", "urls": ["http://127.0.0.1:9"]}
    targets.write_text(json.dumps({"targets": [target]}))
    targets.chmod(0o600)
    short = settings.model_copy(
        update={"session_timeout_ms": 1500, "heartbeat_ms": 400, "alerts_file": str(targets)}
    )
    with Service(role, short, tmp_path / "noise.key", tmp_path / "log") as service:
        assert service._process.wait(PATIENCE) == 1, service.log.read_text()
    assert (
        service.log.read_text().splitlines()[-1].startswith(f"error: {variable_of('session_timeout_ms')}: Kafka")
    )
