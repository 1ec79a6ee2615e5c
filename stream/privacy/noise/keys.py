"""Generates, reads and saves the secret key from which all noise is derived."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from stream.errors import SottoError
from stream.secret_files import SecretFileError, read_secret, replace_secret, write_secret
from stream.settings import (
    KEY_COMMAND_VARIABLE,
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    SECRET_VARIABLES,
    environment_without,
)

KEY_BYTES = 32
COMMAND_TIMEOUT = 60.0
"""Seconds that a command may take to print the key."""
MAX_KEYS = 64
"""Maximum number of keys that one service holds."""
_ID_CONTEXT = "sotto 2026 noise key id v1"


class NoiseKeyError(SottoError, RuntimeError):
    """There is no usable noise key; the message never shows the key.

    Examples:
        >>> try:
        ...     Driver("too short")
        ... except NoiseKeyError as error:
        ...     print("short" in str(error))
        False
    """


@dataclass(frozen=True)
class NoiseKey:
    """A 256-bit secret that determines the noise of every answer.

    New streams use this key; a stream opened under one of the ``older`` keys keeps it.
    """

    secret: bytes = field(repr=False)
    older: tuple[NoiseKey, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            raise NoiseKeyError(f"noise key: must have {KEY_BYTES} bytes; make one with NoiseKey.generate()")

    @property
    def key_id(self) -> str:
        """Public id of the key: 16 hexadecimal digits that do not reveal it."""
        return blake3(self.secret, derive_key_context=_ID_CONTEXT).hexdigest(length=8)

    def subkey(self, purpose: str) -> bytes:
        """Derive a 32-byte key for another purpose, independent of all noise."""
        return blake3(purpose.encode(), key=self.secret).digest()

    @classmethod
    def generate(cls) -> NoiseKey:
        """Generate a key from the operating system's entropy."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str, origin: str = "noise key") -> NoiseKey:
        """Read keys of 64 hexadecimal digits, one per line; the current key is the first. Errors name ``origin``."""
        try:
            secrets_found = [bytes.fromhex(line) for line in text.split()]
        except ValueError:
            secrets_found = []
        if {len(secret) for secret in secrets_found} != {KEY_BYTES}:
            raise NoiseKeyError(f"{origin}: each line must be 64 hexadecimal digits; restore your copy of the key")
        if len(secrets_found) > MAX_KEYS or len(set(secrets_found)) < len(secrets_found):
            raise NoiseKeyError(
                f"{origin}: has more than {MAX_KEYS} keys, or the same key twice; remove repeated keys and keys that no stream needs"
            )
        current, *older = secrets_found
        return cls(current, tuple(cls(secret) for secret in older))

    @classmethod
    def load(cls, path: Path) -> NoiseKey:
        """Read a key file; only its owner may have permission to read it."""
        try:
            text = read_secret(path)
        except SecretFileError as error:
            remedy = "" if path.exists() else f"; restore your copy, or make one with 'sotto key new {path}'"
            raise NoiseKeyError(f"noise key: {error}{remedy}") from None
        return cls.from_text(text, f"noise key file {path}")

    @classmethod
    def from_environment(cls) -> NoiseKey:
        """Read the keys from the first of the three environment variables that is set."""
        if text := os.environ.get(KEY_VARIABLE):
            return cls.from_text(text, KEY_VARIABLE)
        if path := os.environ.get(KEY_FILE_VARIABLE):
            return cls.load(Path(path))
        if command := os.environ.get(KEY_COMMAND_VARIABLE):
            return cls.from_command(command)
        raise NoiseKeyError(
            f"no noise key: set {KEY_VARIABLE}, or {KEY_FILE_VARIABLE} to a file made with 'sotto key new FILE', or "
            f"{KEY_COMMAND_VARIABLE} to a command that prints it"
        )

    @classmethod
    def from_command(cls, command: str) -> NoiseKey:
        """Run a command without a shell and read the keys that it prints."""
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command, split into words and run as such
                shlex.split(command),
                capture_output=True,
                timeout=COMMAND_TIMEOUT,
                check=True,
                env=environment_without(SECRET_VARIABLES),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The error shows neither the command nor its output: either may hold a secret.
            raise NoiseKeyError(
                f"the command in {KEY_COMMAND_VARIABLE} failed ({type(error).__name__}); run the command by itself to see its error"
            ) from None
        return cls.from_text(done.stdout.decode("ascii", errors="replace"), f"output of {KEY_COMMAND_VARIABLE}")

    def successor(self) -> NoiseKey:
        """Generate a new key; this key and its older keys become its older keys."""
        return NoiseKey(secrets.token_bytes(KEY_BYTES), (NoiseKey(self.secret), *self.older))

    def save(self, path: Path, *, replace: bool = False) -> None:
        """Write a key file with owner-only permissions; overwrite only with ``replace``."""
        lines = "\n".join(key.secret.hex() for key in (self, *self.older))
        try:
            (replace_secret if replace else write_secret)(path, lines)
        except SecretFileError as error:
            raise NoiseKeyError(f"noise key: {error}") from None
