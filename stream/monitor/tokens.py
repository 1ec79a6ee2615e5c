"""Who may use the monitor: one token for operators, one for viewers.

Tokens are compared by digest in constant time, both of them whatever the outcome, so that timing tells neither how
much of a guess is right nor which token it resembles.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from stream.environment import OPERATOR_VARIABLE, VIEWER_VARIABLE
from stream.monitor.models import AccessRole
from stream.secret_files import read_secret, write_secret
from stream.settings import Settings

MIN_TOKEN_LENGTH = 32


class TokenError(RuntimeError):
    """The monitor has no usable tokens; the message says what to do and never shows one."""


@dataclass(frozen=True)
class Tokens:
    """The two tokens' digests."""

    operator: bytes = field(repr=False)
    viewer: bytes = field(repr=False)

    @classmethod
    def of(cls, operator: str, viewer: str) -> Self:
        """Take two different tokens of at least 32 printable ASCII characters."""
        for name, token in (("operator", operator), ("viewer", viewer)):
            if len(token) < MIN_TOKEN_LENGTH or not (token.isascii() and token.isprintable() and " " not in token):
                raise TokenError(
                    f"the {name}'s token must have at least {MIN_TOKEN_LENGTH} printable ASCII characters and no "
                    "spaces; make one with 'openssl rand -hex 32'"
                )
        if operator == viewer:
            raise TokenError("the operator's and the viewer's token are the same; choose another for viewers")
        return cls(_digest(operator), _digest(viewer))

    @classmethod
    def load(cls, settings: Settings, environment: Mapping[str, str] = os.environ) -> Self:
        """Read both tokens from their files, or else from the environment."""
        return cls.of(
            _find("operator", settings.monitor_operator_token_file, OPERATOR_VARIABLE, environment),
            viewer_token(settings, environment),
        )

    def role_of(self, token: str) -> AccessRole | None:
        """Whose token this is."""
        given = _digest(token)
        is_operator = hmac.compare_digest(given, self.operator)
        is_viewer = hmac.compare_digest(given, self.viewer)
        if is_operator:
            return "operator"
        return "viewer" if is_viewer else None


def viewer_token(settings: Settings, environment: Mapping[str, str] = os.environ) -> str:
    """The token with which a program of ours reads the API; TokenError says where to put it."""
    return _find("viewer", settings.monitor_viewer_token_file, VIEWER_VARIABLE, environment)


def make_token_file(path: Path) -> None:
    """Write a fresh token to an owner-only file, unless the file exists."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32))


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()


def _find(name: str, file: str, variable: str, environment: Mapping[str, str]) -> str:
    if file:
        return read_secret(Path(file))
    if token := environment.get(variable):
        return token
    raise TokenError(
        f"no {name}'s token: set SOTTO_MONITOR_{name.upper()}_TOKEN_FILE to an owner-only file that holds one, "
        f"or {variable}"
    )
