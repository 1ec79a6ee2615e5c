"""A broker with TLS, SCRAM and access control lists, and requests that Sotto's clients never send."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion  # type: ignore[attr-defined]  # it does not list what it exports
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stream.engine.restore import create_reader
from stream.kafka.acls import AclRole, create_acls, default_principal, role_access
from stream.kafka.broker_addresses import ClusterNode, choose_ports, free_port
from stream.kafka.broker_process import HOST, Ports
from stream.kafka.client.broker_connections import SecurityError, connection_options
from stream.kafka.kafka_programs import new_cluster_id
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics, require_topics
from stream.kafka.topic_layouts import TopicsError, layout
from stream.processing.topic_names import Topics
from stream.secret_files import write_secret
from stream.settings import SECURITY_FIELDS, Settings, variable_of

WRONG = "geheim-und-falsch"
"""A password that no user has."""
MATRIX = "matrix"
"""The prefix of an installation without running services, so that tests may write anything to its topics."""
BROKER, ADMINISTRATOR = "broker", "administrator"
ADDRESS = "127.0.0.1"


class Authority:
    """A certificate authority for one test run."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0)))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for this machine's address, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))])
        certificate = self._folder / f"{name}.certificate.pem"
        certificate.write_bytes(self._sign(subject, key, address))
        file = self._folder / f"{name}.key.pem"
        write_secret(file, _pem(key))
        return certificate, file

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _access_control(
    ports: Ports, clients: int, administration: int, certificate: Path, authority: Path
) -> dict[str, str]:
    """Return the properties of a broker with TLS, SCRAM and access control lists.

    Users with a password take CLIENTS, administrators and the broker itself ADMINISTRATION. The
    listener without TLS only serves the check that the broker is up: its principal has no rights.
    """
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    tokens = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    shown = (
        f"PLAINTEXT://{HOST}:{ports.clients},CLIENTS://{HOST}:{clients},ADMINISTRATION://{HOST}:{administration},"
        f"CONTROLLER://{HOST}:{ports.controller}"
    )
    return {
        "listeners": shown,
        "advertised.listeners": shown,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,ADMINISTRATION:SSL,CONTROLLER:SSL"
        ),
        "inter.broker.listener.name": "ADMINISTRATION",
        "listener.name.administration.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        # Kafka accepts unsigned tokens in tests; only the client's side of the exchange is tested.
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.clients.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.clients.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.clients.oauthbearer.sasl.jaas.config": tokens,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{BROKER};User:{ADMINISTRATOR}",
    }


@dataclass
class SecuredKafka:
    """A broker that refuses everybody except administrators and the users to whom they give access."""

    folder: Path
    broker: LocalBroker
    authority: Authority
    clients: str
    admin: Settings
    passwords: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start a broker, with an administrator who has a certificate; the caller must stop ``broker``."""
        authority = Authority(folder)
        certificate, key = authority.issue(BROKER)
        both = folder / "broker.pem"
        write_secret(both, key.read_text() + certificate.read_text())
        ports, clients, administration = choose_ports(None), free_port(), free_port()
        broker = LocalBroker(
            folder / "broker",
            cluster_node=ClusterNode(1, new_cluster_id(), (ports,)),
            properties=_access_control(ports, clients, administration, both, authority.file),
        )
        broker.start()
        certificate, key = authority.issue(ADMINISTRATOR)
        admin = Settings.of_local_broker(
            f"{HOST}:{administration}",
            security_protocol="SSL",
            tls_ca_file=str(authority.file),
            tls_certificate_file=str(certificate),
            tls_key_file=str(key),
        )
        return cls(folder, broker, authority, f"{HOST}:{clients}", admin)

    def administrator(self, prefix: str) -> Settings:
        """Return the administrator's settings for an installation."""
        return self.admin.model_copy(update={"prefix": prefix})

    def add_users(self, names: Iterable[str]) -> None:
        """Create SCRAM users, each with a separate password in a file."""
        made = {name: secrets.token_hex(16) for name in names}
        administration = AdminClient(
            {
                "bootstrap.servers": self.admin.bootstrap,
                "security.protocol": "SSL",
                "ssl.ca.location": self.admin.tls_ca_file,
                "ssl.certificate.location": self.admin.tls_certificate_file,
                "ssl.key.location": self.admin.tls_key_file,
            }
        )
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        pending = administration.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(name, credentials, password.encode(), os.urandom(16))
                for name, password in made.items()
            ]
        )
        for one in pending.values():
            one.result(timeout=120)
        for name, password in made.items():
            write_secret(self.folder / f"{name}.password", password)
        self.passwords |= made

    def user(self, name: str, prefix: str, **others: Any) -> Settings:
        """Return a user's settings for an installation."""
        return Settings.of_local_broker(
            self.clients,
            prefix=prefix,
            security_protocol="SASL_SSL",
            sasl_username=name,
            sasl_password_file=str(self.folder / f"{name}.password"),
            tls_ca_file=str(self.authority.file),
            **others,
        )

    def install(self, prefix: str, partitions: int = 2) -> None:
        """Create topics, users and access lists, as an administrator does."""
        admin = self.administrator(prefix).model_copy(update={"partitions": partitions})
        self.add_users(default_principal(role, admin).removeprefix("User:") for role in AclRole)
        asyncio.run(_install(admin))
        for role in AclRole:
            asyncio.run(in_force(self.role(role, prefix), role))

    def role(self, role: AclRole, prefix: str) -> Settings:
        """Return the settings of a role's default principal."""
        return self.user(f"{prefix}-{role}", prefix)


async def _install(admin: Settings) -> None:
    await create_topics(admin)
    for role, granted in role_access(admin).items():
        await create_acls(admin, default_principal(role, admin), granted)


async def in_force(settings: Settings, role: AclRole) -> None:
    """Wait until the broker knows a new user and its access; this takes longer than the request that creates them."""
    async with asyncio.timeout(120):
        while True:
            try:
                await require_topics(settings, role=role)
            except (TopicsError, SecurityError):
                await asyncio.sleep(0.1)
            else:
                return


def topics_of(prefix: str) -> dict[str, str]:
    """Return an installation's topics by their purpose."""
    names = (wanted.name for wanted in layout(Topics(prefix)))
    return {name.removeprefix(f"{prefix}."): name for name in names}


def variables(settings: Settings) -> dict[str, str]:
    """Return the environment variables that give these settings to a command."""
    given = {variable_of(name): str(getattr(settings, name)) for name in ("bootstrap", "prefix", *SECURITY_FIELDS)}
    return given | {variable_of("sasl_password"): settings.sasl_password.get_secret_value()}


class RawKafkaClient:
    """A principal's connection that sends requests without a check of whether they are allowed."""

    def __init__(self, settings: Settings) -> None:
        self._client = AIOKafkaClient(**connection_options(settings))

    async def __aenter__(self) -> Self:
        await self._client.bootstrap()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def write(self, topic: str, partition: int, key: bytes, value: bytes) -> str:
        """Send one record, and return the name of the error in the broker's response."""
        batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        batch.append(0, int(time.time() * 1000), key, value, [])
        request = ProduceRequest(None, -1, 10_000, [(topic, [(partition, bytes(batch.build()))])])
        response = await self._client.send(self._client.get_random_node(), request)
        return str(for_code(response.topics[0][1][0][1]).__name__)

    async def read(self, topic: str, partition: int) -> str:
        """Fetch from the beginning, and return the name of the error in the broker's response."""
        request = FetchRequest(0, 0, 1 << 20, 0, [(topic, [(partition, 0, 1 << 20)])])
        response = await self._client.send(self._client.get_random_node(), request)
        return str(for_code(response.topics[0][1][0][1]).__name__)


async def ends(admin: Settings, topics: Iterable[str], partitions: int) -> dict[TopicPartition, int]:
    """Return each partition's end offset, including uncommitted records and markers."""
    async with create_reader(admin, isolation_level="read_uncommitted") as consumer:
        found: dict[TopicPartition, int] = await consumer.end_offsets(
            [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
        )
        return found


async def fence(settings: Settings, transactional_id: str) -> None:
    """Take over a transactional id, as an attacker does who wants to fence its owner."""
    producer = AIOKafkaProducer(**connection_options(settings), transactional_id=transactional_id)
    try:
        await producer.start()
    finally:
        await producer.stop()


async def writable(settings: Settings) -> set[str]:
    """Return the topics to which a principal may write; the function tries to write to each topic."""
    async with RawKafkaClient(settings) as raw:
        return {
            name
            for name, topic in topics_of(settings.prefix).items()
            if await raw.write(topic, 0, b"k", b"{}") == "NoError"
        }
