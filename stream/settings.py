"""Settings, read from ``SOTTO_…`` environment variables."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "SOTTO_"
"""What every variable begins with."""
LAST_PORT: Final = 65_535
"""The greatest number of a port."""


def _port_of(address: str) -> str | None:
    """The port in one of Kafka's addresses, as it is written; None if there is none, empty if the address has no form."""
    if address.startswith("["):
        _, bracket, rest = address.partition("]")
        return rest[1:] if rest or not bracket else None
    if ":" not in address or _is_ipv6(address):
        return None
    return address.rpartition(":")[2]


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


class Settings(BaseSettings):
    """Everything that an operator may set. Neither ``repr`` nor an error shows the one secret among it, a password."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True)

    bootstrap: str = "127.0.0.1:9092"
    """Kafka's addresses, comma-separated."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How Kafka is reached: TLS with ``SSL``, a user's name and password or token with ``SASL``, or both."""

    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """How a user proves who it is, under ``SASL_…``."""

    sasl_username: str = ""
    """The user, for every mechanism but OAUTHBEARER."""

    sasl_password: SecretStr = SecretStr("")
    """The user's password; a file is better, since a process's environment can be read by all of its user's processes."""

    sasl_password_file: str = ""
    """Owner-only file with the password."""

    sasl_token_file: str = ""
    """Owner-only file with the bearer token, for OAUTHBEARER; read anew for each connection."""

    sasl_token_command: str = ""
    """Command that prints the bearer token, for OAUTHBEARER; run without a shell, for each connection."""

    tls_ca_file: str = ""
    """PEM file of the certificate authorities that the brokers' certificates must come from; else the system's."""

    tls_certificate_file: str = ""
    """PEM file of this client's certificate and its chain, for brokers that ask for one."""

    tls_key_file: str = ""
    """Owner-only PEM file of that certificate's key, unencrypted."""

    tls_check_hostname: bool = True
    """Whether a broker's certificate must be for the address that was asked for."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "sotto"
    """First part of every topic, group and transactional id: one installation per prefix."""

    instance: Annotated[str, StringConstraints(pattern=r"^(@host|[A-Za-z0-9._-]{0,200})$")] = ""
    """Name of this process among those of its role, ``@host`` for the host's; whoever is killed and comes back under its name gets its
    partitions back at once. Each process needs a name of its own, or none."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Partitions of queries, control, answers and state, when topics are created."""

    replication: Annotated[int, Field(ge=1, le=10)] = 1
    """Replicas of each topic, when topics are created; if not set three, or one a broker where there are fewer."""

    batch_events: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most events answered in one transaction."""

    work_outstanding: Annotated[float, Field(ge=0.0, le=86_400.0)] = 20.0
    """Seconds of work that a partition takes on before questions are answered ``busy``; half of them if one stream asks
    alone. 0 for no limit. The same for all workers."""

    work_rate: Annotated[float, Field(gt=0.0, le=1024.0)] = 0.5
    """Seconds of work that a partition is taken to do per second. The same for all workers."""

    batch_bytes: Annotated[int, Field(ge=16_384, le=16 * 1024 * 1024)] = 1_000_000
    """Largest record batch produced; keep it below the topics' max.message.bytes."""

    fetch_bytes: Annotated[int, Field(ge=65_536, le=1 << 30)] = 4 * 1024 * 1024
    """Most bytes prefetched per partition: with the batch limits, what bounds a worker's memory."""

    transaction_timeout_ms: Annotated[int, Field(ge=1000, le=900_000)] = 10_000
    """Milliseconds that a transaction of a dead worker may hold back readers; the brokers' transaction.max.timeout.ms at most."""

    session_timeout_ms: Annotated[int, Field(ge=1000, le=1_800_000)] = 6_000
    """Milliseconds that a silent worker keeps its partitions; between the brokers' group.min.session.timeout.ms, 6,000 unless they are
    told otherwise, and their group.max.session.timeout.ms."""

    standby_partitions: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Partitions of other workers that a worker keeps warm copies of, to take over in a moment; 0 for none."""

    heartbeat_ms: Annotated[int, Field(ge=100, le=600_000)] = 1_000
    """Milliseconds between two heartbeats; a third of the session at most, so that one that is lost costs no membership."""

    table_roots: str = ""
    """Folders and addresses (s3://, postgresql://) that source tables may lie in, separated by colons; with none no table is read."""

    table_bytes: Annotated[int, Field(ge=1 << 20)] = 2 << 30
    """Most bytes that one table's rows may take up in a service: a few for each row and attribute."""

    table_reading_bytes: Annotated[int, Field(ge=256 << 20)] = 4 << 30
    """Most bytes of a table's files together, and most memory that the process which reads them may take."""

    table_reading_seconds: Annotated[float, Field(ge=1.0, le=3600.0)] = 120.0
    """Longest that reading one table may take."""

    table_causes: bool = False
    """Whether callers of services learn why a table is not read; else only the services' log has it. ``sotto up`` sets it."""

    metrics_port: Annotated[int, Field(ge=0, le=LAST_PORT)] = 0
    """Port of a service's figures and probes, /metrics, /readyz and /livez; 0 for none."""

    metrics_host: str = "127.0.0.1"
    """Address that figures and probes listen on; it asks for no token, so keep it off public networks."""

    monitor_host: str = "127.0.0.1"
    """Address that the monitor's page and API listen on."""

    monitor_port: Annotated[int, Field(ge=1, le=LAST_PORT)] = 8080
    """Port of the monitor's page and API."""

    monitor_names_file: str = ""
    """Owner-only file of the names that may use the monitor, with their roles and their tokens' digests; ``sotto token`` keeps it."""

    monitor_token_file: str = ""
    """Owner-only file with one's own token, for commands that ask the monitor; else ``SOTTO_MONITOR_TOKEN``."""

    monitor_requests_per_second: Annotated[float, Field(gt=0.0, le=10_000.0)] = 20.0
    """Requests per second that one token at one address may send for long."""

    monitor_burst: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Requests that one token at one address may send at once."""

    monitor_asks: bool = False
    """Whether the monitor asks streams for those whose tokens may: it then writes ``queries`` and reads ``answers``."""

    monitor_alerts: bool = False
    """Whether the monitor reads ``answers`` to show alerts to all who may look at it."""

    alerts_file: str = ""
    """Owner-only JSON file of the targets that ``sotto serve alerts`` takes alerts to."""

    monitor_event_streams: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Most connections of one token that are sent live events at a time."""

    @field_validator("bootstrap", mode="after")
    @classmethod
    def _has_ports(cls, addresses: str) -> str:
        for place, address in enumerate(addresses.split(","), 1):
            port = _port_of(address.strip())
            if port is not None and not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= LAST_PORT):
                raise ValueError(
                    f"address {place} has no port from 0 to {LAST_PORT} behind its last colon; give HOST:PORT, as 127.0.0.1:9092"
                )
        return addresses

    @field_validator("instance", mode="after")
    @classmethod
    def _host(cls, name: str) -> str:
        return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) if name == "@host" else name

    @field_validator("heartbeat_ms", mode="after")
    @classmethod
    def _beats_in_time(cls, beat: int, info: ValidationInfo) -> int:
        session = info.data.get("session_timeout_ms")
        if session is not None and 3 * beat > session:
            raise ValueError(
                f"{beat} ms is more than a third of {variable('session_timeout_ms')} ({session} ms), so that Kafka would take "
                f"this process for dead; set {session // 3} at most, or a longer session"
            )
        return beat

    @classmethod
    def of_local_broker(cls, bootstrap: str, **others: Any) -> Self:
        """Settings for an unauthenticated broker on this machine: how another one is secured does not concern it."""
        plain = {name: cls.model_fields[name].default for name in SECURITY_FIELDS}
        return cls.model_validate(
            {**cls().model_dump(exclude_unset=True), **plain, "bootstrap": bootstrap, **others}
        )


SECURITY_FIELDS: Final = tuple(
    name for name in Settings.model_fields if name.startswith(("security_", "sasl_", "tls_"))
)
"""The settings that say how Kafka is reached."""


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{field.upper()}"
