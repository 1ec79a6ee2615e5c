"""Signatures of webhooks, as the Standard Webhooks specification has them: libraries in many languages check them.

Signed are the alert's key, the time of sending and the body, so that nobody can change one of them or send a message again
later under another time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
LONGEST: Final = 64


class Secret(NamedTuple):
    """A key of 24 to 64 bytes. It is never shown."""

    key: bytes

    def __repr__(self) -> str:
        return "<secret>"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The secret that a file holds: ``whsec_`` and base64, as receivers' libraries take it too.

        Raises:
            ValueError: it is none, or too short.
        """
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not text.startswith(PREFIX) or not SHORTEST <= len(key) <= LONGEST:
            raise ValueError(
                f"is no secret; give {PREFIX} and {SHORTEST} to {LONGEST} random bytes in base64, as "
                '\'printf "whsec_%s" "$(openssl rand -base64 32)"\' makes it'
            )
        return cls(key)


def signed_headers(secrets: Sequence[Secret], key: str, sent: int, body: bytes) -> dict[str, str]:
    """The headers of one sending: the alert's key, the time in seconds since the epoch, and a signature with each secret."""
    content = f"{key}.{sent}.".encode() + body
    signatures = (
        base64.b64encode(hmac.digest(secret.key, content, hashlib.sha256)).decode() for secret in secrets
    )
    return {
        "webhook-id": key,
        "webhook-timestamp": str(sent),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }
