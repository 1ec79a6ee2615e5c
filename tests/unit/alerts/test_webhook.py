"""A real server of webhooks fails, hangs, throttles and redirects; each alert is finally accepted or given up."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import generate_latest

from stream.alerts import targets
from stream.alerts.alerts_file import WebhookTarget
from stream.alerts.delivery import Alert, AlertMetrics, Backoff, TargetMetrics, TargetSender, parse_outcome
from stream.alerts.targets import Webhook
from stream.kafka.client.broker_connections import wait_for_stop
from tests.unit.alerts.events import NOW, alert
from tests.unit.alerts.receiver import OTHER_SECRET, SECRET, Receiver


class WebhookSetup:
    """A receiver of webhooks, and the objects that deliver alerts to it."""

    def __init__(self, receiver: Receiver, folder: Path) -> None:
        self.receiver = receiver
        self.folder = folder
        self.metrics = AlertMetrics()
        self.now = NOW
        self.stopping = asyncio.Event()
        self.pauses: list[float] = []

    def secret(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def target(self, **fields: Any) -> WebhookTarget:
        given = {
            "name": "oncall",
            "kind": "webhook",
            "url": self.receiver.url,
            "secret_files": [self.secret("secret", SECRET)],
            "timeout": "2s",
            **fields,
        }
        return WebhookTarget.model_validate_json(json.dumps(given))

    async def pause(self, stopping: asyncio.Event, seconds: float) -> bool:
        """Note a pause, advance the clock, and wait for a moment."""
        self.pauses.append(seconds)
        self.now += seconds
        return await wait_for_stop(stopping, min(seconds, 0.01))

    async def deliver(self, *alerts: Alert, ours: Callable[[], bool] = lambda: True, **fields: Any) -> list[bool]:
        target = self.target(**fields)
        async with TargetSender(target.timeout_seconds) as sender:
            backoff = Backoff(first=0.01, longest=0.05)
            webhook = Webhook(
                target,
                sender,
                TargetMetrics(self.metrics, "oncall"),
                self.stopping,
                clock=lambda: self.now,
                backoff=backoff,
            )
            with patch.object(targets, "wait_for_stop", self.pause):
                return [await webhook.deliver(one, ours) for one in alerts]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"target": "oncall", **labels}) or 0.0


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[WebhookSetup]:
    async with Receiver() as receiver:
        yield WebhookSetup(receiver, tmp_path)


async def test_webhook_delivers_signed_alert_of_public_fields(setup: WebhookSetup) -> None:
    assert await setup.deliver(alert(3, warnings=("values are clamped",))) == [True]
    [request] = setup.receiver.requests
    assert request.json == {
        "type": "sotto.alert",
        "timestamp": "2023-11-14T22:13:20.000Z",
        "data": {
            "key": "ab" * 16 + "-3",
            "installation": "sotto",
            "source": "flights",
            "stream": "late",
            "query": "2013-01-01T05:00:00Z/3",
            "index": 3,
            "estimate": 31.5,
            "alpha": 4.0,
            "spent": {"epsilon": 0.5, "delta": 0.0},
            "tops_left": 46,
            "window": {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"},
            "group": {"origin": "EWR"},
            "threshold": 900.0,
            "condition": "delay >= 60",
            "warnings": ["values are clamped"],
        },
    }
    assert request.key == request.json["data"]["key"]
    assert request.headers["webhook-timestamp"] == str(int(NOW))
    assert request.headers["content-type"] == "application/json"
    assert request.is_signed_with(SECRET)
    assert not request.is_signed_with(OTHER_SECRET)
    assert setup.metric("sotto_alerts_delivered_total") == 1


async def test_webhook_signs_with_both_secrets_during_rotation(setup: WebhookSetup) -> None:
    files = [setup.secret("new", OTHER_SECRET), setup.secret("old", SECRET)]
    await setup.deliver(alert(), secret_files=files)
    [request] = setup.receiver.requests
    assert request.is_signed_with(SECRET)
    assert request.is_signed_with(OTHER_SECRET)


async def test_webhook_uses_replaced_secret_at_once(setup: WebhookSetup) -> None:
    setup.receiver.behave = lambda number: web.Response(status=500 if number == 1 else 200)
    rest = setup.pauses

    def ours() -> bool:
        if rest:
            setup.secret("secret", OTHER_SECRET)
        return True

    await setup.deliver(alert(), ours=ours)
    first, second = setup.receiver.requests
    assert first.is_signed_with(SECRET)
    assert second.is_signed_with(OTHER_SECRET)


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (lambda: web.Response(status=500, text="private words of the receiver"), "status"),
        (lambda: web.Response(status=404), "status"),
        (lambda: None, "timeout"),
        (lambda: web.Response(status=302, headers={"Location": "/elsewhere"}), "redirect"),
        (lambda: web.Response(status=308, headers={"Location": "/elsewhere"}), "redirect"),
    ],
)
async def test_webhook_retries_failures_in_order_with_same_key_and_body(
    setup: WebhookSetup, failing: Callable[[], web.Response | None], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    setup.receiver.behave = lambda number: failing() if number <= 2 else web.Response()
    assert await setup.deliver(alert(0), alert(1)) == [True, True]
    keys = [f"{'ab' * 16}-{number}" for number in (0, 0, 0, 1)]
    assert setup.receiver.keys == keys
    assert len({request.body for request in setup.receiver.requests[:3]}) == 1
    assert {request.path for request in setup.receiver.requests} == {"/hook"}  # no redirect was followed
    assert setup.metric("sotto_alerts_failures_total", reason=reason) == 2
    assert setup.metric("sotto_alerts_waiting_seconds") == 0
    said = capfd.readouterr()
    for secret in ("private words", "in-the-address", SECRET, "127.0.0.1"):
        assert secret not in said.out + said.err


async def test_webhook_retries_dead_address(setup: WebhookSetup) -> None:
    dead = setup.receiver.url.replace(str(setup.receiver.port), "1")
    seen: list[int] = []

    def ours() -> bool:
        seen.append(1)
        return len(seen) < 4

    assert await setup.deliver(alert(), ours=ours, url=dead) == [False]
    assert setup.metric("sotto_alerts_failures_total", reason="connection") == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_webhook_waits_as_long_as_target_asks(setup: WebhookSetup, status: int) -> None:
    setup.receiver.behave = lambda number: (
        web.Response(status=status, headers={"Retry-After": "7"}) if number == 1 else web.Response()
    )
    await setup.deliver(alert())
    assert setup.pauses == [7.0]


async def test_webhook_gives_up_old_alert_after_one_try_and_counts_it(setup: WebhookSetup) -> None:
    setup.receiver.behave = lambda _: web.Response(status=500)
    setup.now = NOW + 3601
    assert await setup.deliver(alert(0), alert(1), give_up="1h") == [True, True]
    assert len(setup.receiver.requests) == 2
    assert setup.metric("sotto_alerts_dropped_total", reason="old") == 2
    setup.now = NOW
    assert await setup.deliver(alert(2), give_up="2s") == [True]
    assert sum(setup.pauses) > 2
    assert len(setup.receiver.requests) > 10


async def test_webhook_waits_between_old_alerts_if_target_asks(
    setup: WebhookSetup,
) -> None:
    setup.receiver.behave = lambda number: (
        web.Response(status=429, headers={"Retry-After": "7"}) if number < 3 else web.Response()
    )
    setup.now = NOW + 3601
    assert await setup.deliver(alert(0), alert(1), alert(2), alert(3), give_up="1h") == [True] * 4
    assert setup.pauses == [7.0, 7.0]
    assert [key.rpartition("-")[2] for key in setup.receiver.keys] == ["0", "1", "2", "3"]
    assert setup.metric("sotto_alerts_dropped_total", reason="old") == 2
    assert setup.metric("sotto_alerts_delivered_total") == 2


async def test_webhook_leaves_waiting_alert_to_new_owner_of_partition(
    setup: WebhookSetup,
) -> None:
    setup.receiver.behave = lambda _: web.Response(status=503, headers={"Retry-After": "600"})
    setup.now = NOW + 3601
    ours = lambda: not setup.pauses  # noqa: E731
    assert await setup.deliver(alert(0), alert(1), ours=ours, give_up="1h") == [True, False]
    assert len(setup.receiver.requests) == 1
    assert setup.pauses == [600.0]


async def test_webhook_continues_after_refused_alert(setup: WebhookSetup) -> None:
    setup.receiver.behave = lambda number: web.Response(status=422 if number <= 3 else 200)
    assert await setup.deliver(alert(0), alert(1)) == [True, True]
    assert [key.rpartition("-")[2] for key in setup.receiver.keys] == ["0", "0", "0", "1"]
    assert setup.metric("sotto_alerts_dropped_total", reason="refused") == 1
    assert setup.metric("sotto_alerts_delivered_total") == 1


async def test_webhook_stops_retries_if_partition_moves_or_service_stops(setup: WebhookSetup) -> None:
    setup.receiver.behave = lambda _: web.Response(status=500)
    assert await setup.deliver(alert(), ours=lambda: not setup.pauses) == [False]
    setup.stopping.set()
    assert await setup.deliver(alert(1)) == [False]
    assert setup.metric("sotto_alerts_dropped_total", reason="old") == 0


async def test_webhook_does_not_read_endless_body(setup: WebhookSetup) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    setup.receiver.behave = lambda _: web.Response(body=endless())
    began = time.monotonic()
    assert await setup.deliver(alert()) == [True]
    assert len(setup.receiver.requests) == 1
    assert time.monotonic() - began < 30


async def test_webhook_refuses_untrusted_certificate(tmp_path: Path) -> None:
    context, ca = self_signed(tmp_path)
    application = web.Application()

    async def take(_: web.Request) -> web.Response:
        return web.Response()

    application.router.add_post("/hook", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        async with TargetSender(5.0) as sender:
            assert (await sender.post(url, b"{}", {})).failure == "connection"
        async with TargetSender(5.0, ssl.create_default_context(cafile=ca)) as sender:
            assert (await sender.post(url, b"{}", {})).failure is None
            other = url.replace("127.0.0.1", "localhost")  # the certificate is for the address
            assert (await sender.post(other, b"{}", {})).failure == "connection"
    finally:
        await runner.cleanup()


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "receiver")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca, own = folder / "ca.pem", folder / "key.pem"
    ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    own.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, own)
    return context, ca


def test_backoff_grows_to_limit_with_random_share() -> None:
    longest = Backoff(random_share=lambda: 1.0)
    assert [longest.next_pause() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    shortest = Backoff(random_share=lambda: 0.0)
    assert [shortest.next_pause() for _ in range(3)] == [0.5, 1, 2]
    assert shortest.next_pause(min_seconds=30.0) == 30.0
    shortest.reset()
    assert shortest.next_pause() == 0.5


@pytest.mark.parametrize(
    ("text", "pause"),
    [
        ("12", 12.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2000 22:13:50 GMT", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("999999999", 600.0),
        ("nan", 0.0),
    ],
)
def test_parse_outcome_reads_retry_after(text: str, pause: float) -> None:
    assert parse_outcome(429, {"Retry-After": text}, NOW).pause == pause


def test_alert_metrics_name_no_stream() -> None:
    metrics = AlertMetrics()
    TargetMetrics(metrics, "oncall")
    text = generate_latest(metrics.registry).decode()
    assert 'sotto_alerts_delivered_total{target="oncall"} 0.0' in text
    for reason in ("old", "refused", "room"):
        assert f'sotto_alerts_dropped_total{{reason="{reason}",target="oncall"}} 0.0' in text
    assert 'sotto_alerts_failures_total{reason="throttled",target="oncall"} 0.0' in text
    assert "stream=" not in text  # a label; caches of the process have names such as "ended streams"
    assert logging.getLogger("aiohttp").handlers == []
