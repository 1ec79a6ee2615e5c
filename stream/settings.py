"""Settings from ``SOTTO_…`` environment variables, and a warning about misspelt variables."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.base import text_matching

PREFIX: Final = "SOTTO_"
"""Prefix of every environment variable."""
MS_PER_DAY: Final = 86_400_000
MAX_PORT: Final = 65_535
"""Largest port number."""
DEFAULT_TABLE_BYTES: Final = 2 << 30


def _is_ipv6(text: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(text).version == 6
    return False


class Settings(BaseSettings):
    """All settings, from ``SOTTO_…`` environment variables or keyword arguments.

    Neither ``repr`` nor an error shows the password.

    Examples:
        >>> Settings(bootstrap="kafka:9092", security_protocol="SSL").prefix
        'sotto'
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True)

    bootstrap: str = "127.0.0.1:9092"
    """Kafka's bootstrap addresses, ``HOST:PORT`` separated by commas."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's security protocol: TLS (``SSL``), user authentication (``SASL_PLAINTEXT``), or both."""

    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """Authentication mechanism for the ``SASL_…`` protocols."""

    sasl_username: str = ""
    """User name, for every mechanism except OAUTHBEARER."""

    sasl_password: SecretStr = SecretStr("")
    """Password; prefer a file, because all processes of the user can read an environment."""

    sasl_password_file: str = ""
    """Owner-only file with the password."""

    sasl_token_file: str = ""
    """Owner-only file with the bearer token for OAUTHBEARER; read for each connection."""

    sasl_token_command: str = ""
    """Command that prints the bearer token for OAUTHBEARER; run without a shell for each connection."""

    tls_ca_file: str = ""
    """PEM file of the certificate authorities for the brokers; default: the system's authorities."""

    tls_certificate_file: str = ""
    """PEM file of the client certificate with its chain, if the brokers require one."""

    tls_key_file: str = ""
    """Owner-only PEM file of the client certificate's unencrypted key."""

    tls_check_hostname: bool = True
    """Check that a broker's certificate matches its address."""

    prefix: Annotated[
        str,
        text_matching(r"^[A-Za-z0-9._-]{1,64}$", "give 1 to 64 letters, digits, dots, hyphens and underscores"),
    ] = "sotto"
    """Prefix of every topic, group and transactional id; one installation per prefix."""

    instance: Annotated[
        str,
        text_matching(
            r"^(@host|[A-Za-z0-9._-]{0,200})$",
            "give @host, or at most 200 letters, digits, dots, hyphens and underscores",
        ),
    ] = ""
    """Name of this process for static membership, unique in its role; ``@host`` is the host name. After a
    crash, a process with the same name gets its partitions back at once. Empty: no static membership."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Number of partitions of new topics; ``requests``, ``charges``, ``ledger`` and ``trail`` always have one."""

    replication: Annotated[int, Field(ge=1, le=10)] = 1
    """Number of replicas of each new topic. If unset: three, or the number of brokers if smaller."""

    batch_events: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Maximum number of events in one transaction."""

    work_outstanding: Annotated[float, Field(ge=0.0, le=86_400.0)] = 20.0
    """Seconds of queued work per partition above which questions are answered ``busy``; half as many
    if only one stream asks. 0: no limit. Must be equal for all workers."""

    work_rate: Annotated[float, Field(gt=0.0, le=1024.0)] = 0.5
    """Assumed seconds of work that a partition completes per second. Must be equal for all workers."""

    retire_days: Annotated[float, Field(ge=0.0, le=36_500.0)] = 7.0
    """Days for which the ledger keeps the record of a stream after the stream's end; later it keeps only
    the digest of the name, and sums. 0: for ever. For the budget service."""

    witnesses: str = ""
    """Witnesses outside Kafka that keep heads of the trail, separated by commas: ``file:///FOLDER/FILE``,
    ``s3://BUCKET/FOLDER/``, ``postgresql://HOST[:PORT]/DATABASE/SCHEMA/TABLE``. For the budget service,
    workers and ``sotto ledger``. Empty: none."""

    timestamp_authority: str = ""
    """Address of an RFC 3161 time-stamp authority. If there are witnesses, the budget service gets stamps of
    the trail's heads from it."""

    timestamp_file: str = ""
    """File of the stamps, for the budget service and ``sotto ledger verify``."""

    timestamp_seconds: Annotated[float, Field(ge=1.0, le=86_400.0)] = 3600.0
    """Fewest seconds between two stamps."""

    timestamp_roots: str = ""
    """PEM file of the certificates with which ``sotto ledger verify`` checks stamps."""

    anchor_seconds: Annotated[float, Field(ge=1.0, le=86_400.0)] = 60.0
    """Seconds between two anchors that the budget service writes to each witness if anything has changed."""

    anchor_epsilon: Annotated[float, Field(ge=0.0)] = 1.0
    """Grants of this ε or more are anchored at once. 0: every grant."""

    batch_bytes: Annotated[int, Field(ge=16_384, le=16 * 1024 * 1024)] = 1_000_000
    """Largest record batch in bytes; keep it below the topics' max.message.bytes."""

    fetch_bytes: Annotated[int, Field(ge=65_536, le=1 << 30)] = 4 * 1024 * 1024
    """Maximum number of bytes fetched ahead per partition; with the batch limits, it bounds a worker's memory."""

    transaction_timeout_ms: Annotated[int, Field(ge=1000, le=900_000)] = 10_000
    """Maximum number of milliseconds for which a dead worker's transaction blocks readers; at most the brokers'
    transaction.max.timeout.ms."""

    session_timeout_ms: Annotated[int, Field(ge=1000, le=1_800_000)] = 6_000
    """Milliseconds after which a silent worker loses its partitions; between the brokers'
    group.min.session.timeout.ms (default 6,000) and group.max.session.timeout.ms."""

    standby_partitions: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Maximum number of a worker's standbys: copies of other workers' state, for fast takeovers. 0: none."""

    heartbeat_ms: Annotated[int, Field(ge=100, le=600_000)] = 1_000
    """Milliseconds between heartbeats; at most a third of the session timeout."""

    table_roots: str = ""
    """Allowed folders and addresses (s3://, postgresql://) of tables, separated by colons. Empty: none."""

    table_bytes: Annotated[int, Field(ge=1 << 20)] = DEFAULT_TABLE_BYTES
    """Maximum number of bytes of one table in a service's memory; each row takes a few bytes per attribute."""

    table_reading_bytes: Annotated[int, Field(ge=256 << 20)] = 4 << 30
    """Maximum number of bytes of a table's files in total, and of the memory of the process that reads them."""

    table_reading_seconds: Annotated[float, Field(ge=1.0, le=3600.0)] = 120.0
    """Maximum number of seconds for reading one table."""

    table_readings: Annotated[int, Field(ge=1, le=64)] = 2
    """Maximum number of tables that a service reads at the same time, each within these limits."""

    engine_folder: str = ""
    """Folder on local disk for files of digests of retired streams, and for the databases of tables with another
    ``engine`` than ``memory``. Empty: the system's temporary folder."""

    engine_disk_bytes: Annotated[int, Field(ge=64 << 20)] = 32 << 30
    """Maximum number of bytes on disk of one table's database; its temporary files may have as many bytes again."""

    engine_memory_bytes: Annotated[int, Field(ge=64 << 20)] = 1 << 30
    """Maximum memory in bytes that one table's database uses."""

    engine_seconds: Annotated[float, Field(ge=1.0, le=3600.0)] = 60.0
    """Maximum number of seconds of one statement in a table's database, including its wait for other
    statements; doubled when the statement is retried."""

    engine_statements: Annotated[int, Field(ge=1, le=64)] = 2
    """Maximum number of statements in tables' databases that a service runs at the same time."""

    table_causes: bool = False
    """Report to clients why a table cannot be read; otherwise only the log has the cause. ``sotto up`` sets it."""

    metrics_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 0
    """Port of a service's metrics and probes, /metrics, /readyz and /livez. 0: none."""

    metrics_host: str = "127.0.0.1"
    """Address on which metrics and probes listen. Do not use a public address: they need no token."""

    monitor_host: str = "127.0.0.1"
    """Address that the monitor's page and API listen on."""

    monitor_port: Annotated[int, Field(ge=1, le=MAX_PORT)] = 8080
    """Port of the monitor's page and API."""

    monitor_names_file: str = ""
    """Owner-only file of the monitor's users, with roles and token digests; ``sotto token`` writes it."""

    monitor_token_file: str = ""
    """Owner-only file with your monitor token, for commands; default: ``SOTTO_MONITOR_TOKEN``."""

    monitor_oidc_issuer: str = ""
    """Address of the OpenID provider for single sign-on, as it names itself; empty: tokens only."""

    monitor_oidc_client_id: str = ""
    """The monitor's client id at the provider."""

    monitor_oidc_client_secret_file: str = ""
    """Owner-only file with the client's secret."""

    monitor_oidc_address: str = ""
    """The page's public address; the redirect URI is this address with ``/sign-in/callback`` behind it."""

    monitor_oidc_roles: str = ""
    """Roles by values of the claim, as ``operator=sotto-operators,viewer=*``; the highest counts."""

    monitor_oidc_role_claim: str = "groups"
    """Claim of the ID token with a person's groups or roles."""

    monitor_oidc_name_claim: str = "sub"
    """Claim with a person's name. People must not be able to change it, because allotments and the trail use it."""

    monitor_oidc_hours: Annotated[float, Field(gt=0.0, le=24.0)] = 4.0
    """Hours after which a person must sign in again; a removed person has access until then."""

    monitor_requests_per_second: Annotated[float, Field(gt=0.0, le=10_000.0)] = 20.0
    """Average requests per second of one token at one address."""

    monitor_burst: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of requests that one token at one address may send at once."""

    monitor_asks: bool = False
    """Let analysts and operators ask questions in the monitor, which then writes ``queries`` and reads ``answers``."""

    monitor_alerts: bool = False
    """Let the monitor read ``answers`` and show alerts to all its users."""

    alerts_file: str = ""
    """Owner-only JSON file of the targets of ``sotto serve alerts``."""

    monitor_event_streams: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Maximum number of connections for live events that one token may have at a time."""

    @field_validator("bootstrap", mode="after")
    @classmethod
    def _check_ports(cls, addresses: str) -> str:
        for address in map(str.strip, addresses.split(",")):
            _, _, port = address.rpartition(":")
            if _is_ipv6(address) or not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= MAX_PORT):
                raise ValueError(
                    f"'{address[:64]}' has no port from 0 to {MAX_PORT}; give HOST:PORT, for example 127.0.0.1:9092 or [::1]:9092"
                )
        return addresses

    @field_validator("instance", mode="after")
    @classmethod
    def _resolve_host_name(cls, name: str) -> str:
        return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) if name == "@host" else name

    @field_validator("heartbeat_ms", mode="after")
    @classmethod
    def _check_heartbeat(cls, beat: int, info: ValidationInfo) -> int:
        session = info.data.get("session_timeout_ms")
        if session is not None and 3 * beat > session:
            raise ValueError(
                f"{beat} ms is more than a third of {variable_of('session_timeout_ms')} ({session} ms), so Kafka would consider "
                f"this process dead; set at most {session // 3}, or a longer session"
            )
        return beat

    @classmethod
    def of_local_broker(cls, bootstrap: str, **others: Any) -> Self:
        """Return the environment's settings for a local broker; security settings have their defaults."""
        default_security = {name: cls.model_fields[name].default for name in SECURITY_FIELDS}
        return cls.model_validate(
            {**cls().model_dump(exclude_unset=True), **default_security, "bootstrap": bootstrap, **others}
        )


SECURITY_FIELDS: Final = tuple(
    name for name in Settings.model_fields if name.startswith(("security_", "sasl_", "tls_"))
)
"""The settings of Kafka's security."""


def variable_of(field: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{field.upper()}"


KEY_VARIABLE: Final = "SOTTO_NOISE_KEY"
KEY_FILE_VARIABLE: Final = "SOTTO_NOISE_KEY_FILE"
KEY_COMMAND_VARIABLE: Final = "SOTTO_NOISE_KEY_COMMAND"
TOKEN_VARIABLE: Final = "SOTTO_MONITOR_TOKEN"  # noqa: S105  (a name)
KERNEL_VARIABLE: Final = "SOTTO_KERNEL"
"""``off`` disables the compiled kernel."""
KERNEL_OFF: Final = "off"
CACHE_VARIABLE: Final = "SOTTO_CACHE"
"""Folder for the local broker's files."""
BROKER_OPTIONS_VARIABLE: Final = "SOTTO_BROKER_JAVA_OPTIONS"
"""Additional Java options of the local broker."""
COMPOSE_VARIABLES: Final = frozenset(
    f"SOTTO_{name}" for name in ("UID", "ALERTS", "DATA", "NAMES", "NOISE_KEY_FILE", "VIEWER_TOKEN_FILE")
)
"""Variables of the Docker Compose file."""
SCREENSHOTS_VARIABLE: Final = "SOTTO_SCREENSHOTS"
"""Folder for screenshots of the page's tests."""

NOISE_KEY_VARIABLES: Final = frozenset({KEY_VARIABLE, KEY_FILE_VARIABLE, KEY_COMMAND_VARIABLE})
"""The noise key or its location, for workers and budget service."""
MONITOR_TOKEN_VARIABLES: Final = frozenset({TOKEN_VARIABLE, f"{TOKEN_VARIABLE}_FILE"})
"""The user's monitor token or its location; only for commands."""
MONITOR_NAMES_VARIABLES: Final = frozenset({"SOTTO_MONITOR_NAMES_FILE"})
"""Location of the token digests, for the monitor."""
KAFKA_CREDENTIAL_VARIABLES: Final = frozenset(
    f"SOTTO_{name}"
    for name in ("SASL_PASSWORD", "SASL_PASSWORD_FILE", "SASL_TOKEN_FILE", "SASL_TOKEN_COMMAND", "TLS_KEY_FILE")
)
"""Kafka credentials or their locations, for every service."""
SECRET_VARIABLES: Final = (
    NOISE_KEY_VARIABLES | MONITOR_TOKEN_VARIABLES | MONITOR_NAMES_VARIABLES | KAFKA_CREDENTIAL_VARIABLES
)
"""All secrets, which a program that Sotto starts must not inherit."""


def environment_without(names: frozenset[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment, by default of this process, without the variables ``names``."""
    return {name: text for name, text in environment.items() if name not in names}


SETTING_VARIABLES: Final = frozenset(map(variable_of, Settings.model_fields))
"""The variables of settings; lower-case spellings are read too."""
ALL_VARIABLES: Final = (
    SETTING_VARIABLES
    | NOISE_KEY_VARIABLES
    | MONITOR_TOKEN_VARIABLES
    | COMPOSE_VARIABLES
    | {KERNEL_VARIABLE, CACHE_VARIABLE, BROKER_OPTIONS_VARIABLE, SCREENSHOTS_VARIABLE}
)
"""All variables that Sotto reads."""

_MAX_NAMED: Final = 10
"""Maximum number of variables named in a warning."""
_MIN_SIMILARITY: Final = 0.75
_SERVICE_HOST_SUFFIX: Final = "_SERVICE_HOST"
_SERVICE_VARIABLE_PATTERN: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT(_\d+_\w+)?")


def unread_variables_warning(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning about ``SOTTO_…`` variables without effect; None if there are none.

    It names the most similar known variable, and no values, which may be secrets. It skips the
    variables that Kubernetes sets for a service whose name begins with ``sotto``.
    """
    parts = []
    services = {
        name.removesuffix(_SERVICE_HOST_SUFFIX) for name in environment if name.endswith(_SERVICE_HOST_SUFFIX)
    }
    unread = sorted(
        name for name in environment if not _is_read(name) and not _is_set_by_kubernetes(name, services)
    )
    if unread:
        more = f" and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
        parts.append(
            f"nothing reads {', '.join(map(_name_with_suggestion, unread[:_MAX_NAMED]))}{more}; correct the name or unset it"
        )
    if environment.get(KERNEL_VARIABLE, "").casefold() not in {"", KERNEL_OFF}:
        parts.append(
            f"{KERNEL_VARIABLE} has no effect: its only value is '{KERNEL_OFF}'; unset it to use the compiled kernel"
        )
    return "; ".join(parts) or None


def _is_read(name: str) -> bool:
    return not name.upper().startswith(PREFIX) or name in ALL_VARIABLES or name.upper() in SETTING_VARIABLES


def _is_set_by_kubernetes(name: str, services: set[str]) -> bool:
    return any(name.startswith(one) and _SERVICE_VARIABLE_PATTERN.fullmatch(name[len(one) :]) for one in services)


def _name_with_suggestion(name: str) -> str:
    # Compare names without their common prefix.
    name_by_suffix = {one.removeprefix(PREFIX): one for one in ALL_VARIABLES}
    near = get_close_matches(
        name.upper().removeprefix(PREFIX), sorted(name_by_suffix), n=1, cutoff=_MIN_SIMILARITY
    )
    return f"{name} (is {name_by_suffix[near[0]]} meant?)" if near else name
