"""The secret that all noise is derived from."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

KEY_BYTES = 32
KEY_VARIABLE = "SOTTO_NOISE_KEY"
KEY_FILE_VARIABLE = "SOTTO_NOISE_KEY_FILE"
_ID_CONTEXT = "sotto 2026 noise key id v1"


class NoiseKeyError(RuntimeError):
    """There is no usable noise key; the message says what to do and never shows the key."""


@dataclass(frozen=True)
class NoiseKey:
    """A 256-bit secret. Whoever holds it can tell every answer's noise; without it noise is as good as random."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise NoiseKeyError(f"a noise key has {KEY_BYTES} bytes; make one with 'sotto key new'")

    @property
    def key_id(self) -> str:
        """A public name of the key: 16 hexadecimal digits from which the key cannot be told."""
        return blake3(self.secret, derive_key_context=_ID_CONTEXT).hexdigest(length=8)

    def subkey(self, purpose: str) -> bytes:
        """A 32-byte key for another purpose, independent of all noise."""
        return blake3(purpose.encode(), key=self.secret).digest()

    @classmethod
    def generate(cls) -> NoiseKey:
        """A fresh key from the operating system's entropy."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> NoiseKey:
        """Read 64 hexadecimal digits."""
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            raise NoiseKeyError("a noise key is 64 hexadecimal digits; make one with 'sotto key new'") from None
        return cls(secret)

    @classmethod
    def load(cls, path: Path) -> NoiseKey:
        """Read a key file, which nobody but its owner may read."""
        try:
            mode = path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077 and not _is_mounted_secret(path):
                raise NoiseKeyError(f"key file {path} is open to others; run 'chmod 600 {path}'")
            return cls.from_text(path.read_bytes().decode("ascii", errors="replace"))
        except OSError as error:
            raise NoiseKeyError(
                f"cannot read key file {path} ({error.strerror}); make one with 'sotto key new {path}'",
            ) from None

    @classmethod
    def from_environment(cls) -> NoiseKey:
        """The key in ``SOTTO_NOISE_KEY``, or in the file that ``SOTTO_NOISE_KEY_FILE`` names."""
        if text := os.environ.get(KEY_VARIABLE):
            return cls.from_text(text)
        if path := os.environ.get(KEY_FILE_VARIABLE):
            return cls.load(Path(path))
        raise NoiseKeyError(
            f"no noise key: set {KEY_VARIABLE}, or {KEY_FILE_VARIABLE} to a file made with 'sotto key new FILE'",
        )

    def save(self, path: Path) -> None:
        """Write a new key file with owner-only permissions; an existing file is never overwritten."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise NoiseKeyError(f"{path} exists already; a key is never overwritten") from None
        except OSError as error:
            raise NoiseKeyError(f"cannot write {path}: {error.strerror}") from None
        with os.fdopen(descriptor, "w") as stream:
            stream.write(self.secret.hex() + "\n")


def _is_mounted_secret(path: Path) -> bool:
    """Container engines mount secrets read-only for all users of the container, whatever the file's mode."""
    return path.is_relative_to("/run/secrets")
