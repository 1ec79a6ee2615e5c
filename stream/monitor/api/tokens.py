"""The names file: users' names, roles and tokens; only digests of tokens are stored.

A token is ``sotto_ID_SECRET``: its public id, and 256 random bits of the operating system.
A single SHA-256 protects 256 random bits; slow or salted hashes are for secrets that people choose.
The id selects the entry, and the digest is compared in constant time, with a dummy digest if
there is no entry.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from schemas.base import Digest, Identifier, repeats_a_field
from stream.diagnostics import get_logger
from stream.monitor.api.models import AccessRole
from stream.secret_files import SecretFileError, read_secret, replace_secret, write_secret

MAX_TOKENS = 10_000
"""Maximum number of tokens in one file; revoked tokens count too."""

_PREFIX = "sotto"
_DUMMY_DIGEST = bytes(32)

Seconds = Annotated[int, Field(ge=0)]


class TokenError(RuntimeError):
    """A token or the names file is invalid; the message never shows a token."""


class Bearer(NamedTuple):
    """The user of a request: a name with a role, and the token's id, which is empty in a session of single sign-on."""

    name: str
    role: AccessRole
    token: str
    expires: int | None = None


class Token(BaseModel):
    """One token of a name; ``created``, ``expires`` and ``revoked`` are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    name: Identifier
    role: AccessRole
    digest: Digest = Field(repr=False)
    created: Seconds
    expires: Seconds | None = None
    revoked: Seconds | None = None

    @classmethod
    def from_text(
        cls, text: str, name: str, role: AccessRole, *, created: int, expires: int | None = None
    ) -> Self:
        """Return the entry to store for a token's text."""
        return cls(
            id=text.split("_")[1],
            name=name,
            role=role,
            digest=_digest(text).hex(),
            created=created,
            expires=expires,
        )

    def status_at(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Return the token's status: valid, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "valid"


class TokenFile(BaseModel):
    """The names file: every token with its name and role. A name has one role at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    version: Literal[1] = 1
    tokens: Annotated[tuple[Token, ...], Field(max_length=MAX_TOKENS)] = ()

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        if len(self._by_id) != len(self.tokens):
            raise ValueError("tokens: two tokens have the same id")
        roles: dict[str, AccessRole] = {}
        for token in self.tokens:
            if token.revoked is None and roles.setdefault(token.name, token.role) != token.role:
                raise ValueError("tokens: a name has two roles")
        return self

    def bearer(self, text: str, now: float) -> Bearer | None:
        """Return the user of a token; None if it is unknown, expired or revoked."""
        prefix, _, rest = text.partition("_")
        token = self._by_id.get(rest.partition("_")[0]) if prefix == _PREFIX else None
        stored_digest = _DUMMY_DIGEST if token is None else bytes.fromhex(token.digest)
        is_right = hmac.compare_digest(_digest(text), stored_digest)
        if token is None or not is_right or token.status_at(now) != "valid":
            return None
        return Bearer(token.name, token.role, token.id, token.expires)

    def is_valid(self, bearer: Bearer, now: float) -> bool:
        """Return True if a user's token is still valid."""
        token = self._by_id.get(bearer.token)
        return token is not None and token.status_at(now) == "valid" and token.role == bearer.role

    def add_token(
        self, name: str, role: AccessRole, *, now: int, expires: int | None
    ) -> tuple[TokenFile, Token, str]:
        """Return the file with a new token, the token's entry, and its text, which only the user gets."""
        for token in self.tokens:
            if token.name == name and token.revoked is None and token.role != role:
                raise TokenError(
                    f"name: {name} is {role_with_article(token.role)} already; run 'sotto token revoke {name}' first, "
                    "or choose another name"
                )
        if len(self.tokens) >= MAX_TOKENS:
            raise TokenError(f"the file has {MAX_TOKENS} tokens already; start a new file")
        text = generate_token()
        new_token = Token.from_text(text, name, role, created=now, expires=expires)
        return TokenFile(tokens=(*self.tokens, new_token)), new_token, text

    def revoke(self, which: str, now: int) -> tuple[TokenFile, tuple[Token, ...]]:
        """Revoke all tokens of a name, or one token by id; return the file and the revoked entries."""
        found = [token for token in self.tokens if which in {token.name, token.id}]
        if not found:
            raise TokenError(f"there is no name and no token '{which[:128]}'; 'sotto token list' lists them")
        revoked = tuple(token.model_copy(update={"revoked": now}) for token in found if token.revoked is None)
        by_id = {token.id: token for token in revoked}
        return TokenFile(tokens=tuple(by_id.get(token.id, token) for token in self.tokens)), revoked

    @cached_property
    def _by_id(self) -> Mapping[str, Token]:
        return {token.id: token for token in self.tokens}


def generate_token() -> str:
    """Generate the text of a new token."""
    return f"{_PREFIX}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def role_with_article(role: AccessRole) -> str:
    """Return a role with its article, such as "an operator"."""
    return f"{'a' if role == 'viewer' else 'an'} {role}"


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogateescape")).digest()


REREAD_SECONDS = 10.0
"""Seconds after which an unchanged file is read again, because its folder's permissions may have changed."""
RETRY_SECONDS = 1.0
"""Seconds after which an unreadable file is read again."""

log = get_logger("monitor")

_Stamp = tuple[int, ...]
_Result = TypeVar("_Result")


class NamesFile:
    """Reads the names file; each call checks the file for changes and returns its content."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp: _Stamp | None = None
        self._read_at = float("-inf")
        self._names: TokenFile | None = None
        self._failure = ""

    def __call__(self) -> TokenFile:
        """Return the names file; raise TokenError if it is unreadable."""
        now, stamp = self._clock(), _file_stamp(self._path)
        max_age = RETRY_SECONDS if self._names is None else REREAD_SECONDS
        if stamp != self._stamp or now - self._read_at >= max_age:
            self._stamp, self._read_at = stamp, now
            self._read()
        if self._names is None:
            raise TokenError(self._failure)
        return self._names

    def _read(self) -> None:
        try:
            self._names = read_names(self._path)
            if self._failure:
                log.info("names file readable again")
            self._failure = ""
        except (SecretFileError, TokenError) as error:
            self._names = None
            if str(error) != self._failure:
                log.error("names file unreadable; all tokens are refused", detail=str(error))  # noqa: TRY400
            self._failure = str(error)


def read_names(path: Path) -> TokenFile:
    """Read a names file; raise SecretFileError unless only its owner can read it."""
    text = read_secret(path)
    try:
        names = TokenFile.model_validate_json(text)
        is_repeated = repeats_a_field(text)
    except ValidationError as error:
        places = sorted({".".join(map(str, detail["loc"])) or "document" for detail in error.errors()})[:5]
        raise TokenError(
            f"{path} is not a names file (wrong: {', '.join(places)}); restore your copy, or give 'sotto token create' a new path"
        ) from None
    if is_repeated:
        raise TokenError(f"{path} gives a field twice; restore the file that 'sotto token' wrote")
    return names


def change_names(path: Path, change: Callable[[TokenFile], tuple[TokenFile, _Result]]) -> _Result:
    """Create or replace the file under a lock; readers see the whole old file or the whole new file."""
    with _lock_folder(path.resolve().parent):
        is_new = not os.path.lexists(path)
        names, result = change(TokenFile() if is_new else read_names(path))
        text = names.model_dump_json(indent=1)
        if is_new:
            write_secret(path, text)
        else:
            replace_secret(path, text)
    return result


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder, because a lock on the file would be lost when the file is replaced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SecretFileError(f"cannot use folder {folder}: {error.strerror}; make it first") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _file_stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)
