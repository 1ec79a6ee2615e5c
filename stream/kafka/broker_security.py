"""A local broker that asks who is there: TLS, SCRAM users, client certificates, and access control lists."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ADMINISTRATION", "CLIENTS", "BrokerSecurity"]

CLIENTS: Final = "CLIENTS"
"""The listener of users with a password, over TLS."""
ADMINISTRATION: Final = "ADMINISTRATION"
"""The listener of the broker itself and of administrators, over TLS with client certificates."""

_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """What the broker shows and whom it trusts. Nobody may do anything but administrators, until there are access lists."""

    certificate: Path
    """Owner-only PEM file of the broker's key (PKCS #8, unencrypted) and certificate, which is for 127.0.0.1."""
    authority: Path
    """PEM file of the certificate authority for the broker and for administrators."""
    superusers: tuple[str, ...]
    """Common names of the certificates that may do everything; the broker's own among them."""

    def properties(self) -> Mapping[str, str]:
        """Kafka's server properties, apart from addresses."""
        mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512")
        logins = {
            f"listener.name.{CLIENTS.lower()}.{mechanism.lower()}.sasl.jaas.config": _SCRAM
            for mechanism in mechanisms
        }
        asking = {
            f"listener.name.{listener.lower()}.ssl.client.auth": "required"
            for listener in (ADMINISTRATION, "CONTROLLER")
        }
        return {
            "listener.security.protocol.map": f"{CLIENTS}:SASL_SSL,{ADMINISTRATION}:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": ADMINISTRATION,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate.absolute()),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.absolute()),
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": ",".join(mechanisms),
            **logins,
            **asking,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in self.superusers),
        }

    def context(self) -> ssl.SSLContext:
        """Connects as the broker itself."""
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.certificate)
        return context
