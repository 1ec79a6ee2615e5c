"""Names with a role, and the tokens that belong to them. Of a token its digest is all that is kept.

A token is ``sotto_ID_SECRET``: the public name of the token, and 256 bits from the system's source of randomness. Nobody
can list so many candidates, so one SHA-256 hides them as well as a slow or salted hash would, which are for secrets that
people choose. The id picks the entry, and the digest is compared in constant time, with nobody's if there is no
such entry.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.base import Digest, Identifier
from stream.monitor.models import AccessRole

MAX_TOKENS = 10_000
"""Tokens in one file, revoked ones among them."""

_PREFIX = "sotto"
_NOBODY = bytes(32)

TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
Standing = Literal["valid", "expired", "revoked"]
Seconds = Annotated[int, Field(ge=0)]


class TokenError(RuntimeError):
    """A token, or the file of names, cannot be used; the message says what to do and never shows a token."""


class Bearer(NamedTuple):
    """Who asks: a name with a role, by one of its tokens."""

    name: str
    role: AccessRole
    token: str
    expires: int | None = None


class Token(BaseModel):
    """One token of a name; ``created``, ``expires`` and ``revoked`` are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    id: TokenId
    name: Identifier
    role: AccessRole
    digest: Digest = Field(repr=False)
    created: Seconds
    expires: Seconds | None = None
    revoked: Seconds | None = None

    @classmethod
    def of(cls, text: str, name: str, role: AccessRole, *, created: int, expires: int | None = None) -> Self:
        """The entry of a token's text."""
        return cls(
            id=text.split("_")[1],
            name=name,
            role=role,
            digest=_digest(text).hex(),
            created=created,
            expires=expires,
        )

    def standing(self, now: float) -> Standing:
        """Whether it still opens anything."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "valid"


class Names(BaseModel):
    """The whole file: every token that was made, with its name and role. A name has one role at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    version: Literal[1] = 1
    tokens: Annotated[tuple[Token, ...], Field(max_length=MAX_TOKENS)] = ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if len(self._by_id) != len(self.tokens):
            raise ValueError("two tokens have one id")
        roles: dict[str, AccessRole] = {}
        for token in self.tokens:
            if token.revoked is None and roles.setdefault(token.name, token.role) != token.role:
                raise ValueError("a name has two roles")
        return self

    def bearer(self, text: str, now: float) -> Bearer | None:
        """Whose token this is; None where it is nobody's, or expired, or revoked."""
        token = self._by_id.get(_id_of(text))
        kept = _NOBODY if token is None else bytes.fromhex(token.digest)
        is_right = hmac.compare_digest(_digest(text), kept)
        if token is None or not is_right or token.standing(now) != "valid":
            return None
        return Bearer(token.name, token.role, token.id, token.expires)

    def still_knows(self, bearer: Bearer, now: float) -> bool:
        """Whether the token by which somebody came in would let them in again."""
        token = self._by_id.get(bearer.token)
        return token is not None and token.standing(now) == "valid" and token.role == bearer.role

    def with_token(self, name: str, role: AccessRole, *, now: int, expires: int | None) -> tuple[Self, Token, str]:
        """These names and a fresh token, its entry, and its text, which is kept nowhere."""
        for token in self.tokens:
            if token.name == name and token.revoked is None and token.role != role:
                raise TokenError(
                    f"name: {name} is {article(token.role)} already; run 'sotto token revoke {name}' first, "
                    "or choose another name"
                )
        if len(self.tokens) >= MAX_TOKENS:
            raise TokenError(f"there are {MAX_TOKENS} tokens already; start a new file")
        text = new_text()
        fresh = Token.of(text, name, role, created=now, expires=expires)
        return self._with((*self.tokens, fresh)), fresh, text

    def without(self, which: str, now: int) -> tuple[Self, tuple[Token, ...]]:
        """These names with all tokens of one, or the token of one id, revoked; and those that were revoked by this."""
        found = [token for token in self.tokens if which in {token.name, token.id}]
        if not found:
            raise TokenError(f"there is no name and no token '{which[:128]}'; 'sotto token list' lists them")
        ended = tuple(token.model_copy(update={"revoked": now}) for token in found if token.revoked is None)
        by_id = {token.id: token for token in ended}
        return self._with(tuple(by_id.get(token.id, token) for token in self.tokens)), ended

    def _with(self, tokens: tuple[Token, ...]) -> Self:
        return type(self)(tokens=tokens)

    @cached_property
    def _by_id(self) -> Mapping[str, Token]:
        return {token.id: token for token in self.tokens}


def new_text() -> str:
    """A token that nobody has."""
    return f"{_PREFIX}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def article(role: AccessRole) -> str:
    """A role in a sentence."""
    return f"{'a' if role == 'viewer' else 'an'} {role}"


def _id_of(text: str) -> str:
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _PREFIX else ""


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogateescape")).digest()
