"""The file that says where alerts go: each target with its address, its secrets' files and the streams that it is told of."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from schemas.base import ByKind
from schemas.json_limits import repeats_a_field
from schemas.windows import Span, span_ms
from schemas.wire import Place, describe_at, parsed
from stream.questions.alert_states import matches
from stream.secret_files import SecretFileError, read_secret

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


MAX_TARGETS: Final = 32


class AlertsError(RuntimeError):
    """Alerts cannot be sent as the file says; the message names the field and what to do, and shows no address or secret."""


def _address(text: str) -> str:
    # Looked for first: urlsplit leaves some of them out and says nothing.
    if unfit := next((sign for sign in text if sign.isspace() or not sign.isprintable()), None):
        raise ValueError(f"has U+{ord(unfit):04X}, which no address holds; remove it, or write it with %")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is no address; give https://host/path") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment or port == 0:
        raise ValueError("is no address of HTTP; give https://host/path")
    if not _is_host(parts.hostname):
        raise ValueError("has a host of a name that none can have; give https://host/path")
    return text


def _is_host(name: str) -> bool:
    if ":" in name:  # an IPv6 address, which urlsplit has looked at
        return True
    try:
        return re.fullmatch(r"[A-Za-z0-9._-]+", name.encode("idna").decode()) is not None
    except UnicodeError:
        return False


Address = Annotated[str, StringConstraints(min_length=1, max_length=2048), AfterValidator(_address)]
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
TARGET_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
TargetName = Annotated[str, StringConstraints(pattern=TARGET_NAME)]
Patterns = Annotated[tuple[str, ...], Field(max_length=1000, strict=False)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
LabelText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class _Target(_Strict):
    """What every target has. Without ``streams`` and ``sources`` it is told of all; each is a name, or one with ``*``."""

    name: TargetName
    streams: Patterns = ()
    sources: Patterns = ()
    timeout: Span = "10s"
    ca_file: FileName = ""
    bearer_file: FileName = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where requests go."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _shows_one_thing(self) -> Self:
        if self.bearer_file and any((parts := urlsplit(one)).username or parts.password for one in self.addresses):
            raise ValueError("bearer_file: an address has a name or password of its own; remove either")
        return self

    def wants(self, source: str, stream: str) -> bool:
        """Whether a stream's alerts are for this target."""
        return matches(source, self.sources) and matches(stream, self.streams)

    @property
    def timeout_seconds(self) -> float:
        """Longest that one request may take."""
        return min(max(span_ms(self.timeout) / 1000, 0.1), 60.0)

    def bearer(self) -> str | None:
        """The token that is shown to the target, read anew each time."""
        if not self.bearer_file:
            return None
        token = _read(self.bearer_file, self.name, "bearer_file")
        if re.fullmatch(r"[!-~]+", token) is None:
            found = "is empty" if not token else "has lines, spaces or signs that are not ASCII"
            raise AlertsError(
                f"target {self.name}: bearer_file: {self.bearer_file} {found}; put the token alone there, in one line"
            )
        return token

    def tls(self) -> ssl.SSLContext:
        """What its certificate is verified with."""
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            found = (
                "holds no certificate" if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
            )
            raise AlertsError(
                f"target {self.name}: ca_file: {self.ca_file} {found}; give a PEM file of the authorities, or leave it "
                "out for the system's"
            ) from None


class WebhookTarget(_Target):
    """Somebody's program that is told of each alert, in order and at least once, signed with each of the secrets.

    Two secrets are for changing one: the receiver takes either. An alert that could not be delivered is given up once it is
    older than ``give_up``.
    """

    kind: Literal["webhook"]
    url: Address
    secret_files: Annotated[tuple[FileName, ...], Field(min_length=1, max_length=2, strict=False)]
    give_up: Span = "1d"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one that it has."""
        return (self.url,)

    def secrets(self) -> list[Secret]:
        """The secrets, read anew each time: a new one is signed with as soon as it is there."""
        found = []
        for file in self.secret_files:
            try:
                found.append(Secret.parse(_read(file, self.name, "secret_files")))
            except ValueError as error:
                raise AlertsError(f"target {self.name}: secret_files: {file}: {error}") from None
        return found


class AlertmanagerTarget(_Target):
    """One Alertmanager, or all of a cluster: it is told what is firing, every ``resend``, and what has ended.

    What was heard of no more is resolved when a window's length and ``resolve_after`` have passed. After a restart what is firing
    is found in the answers of the last ``look_back``.
    """

    RESERVED: ClassVar[frozenset[str]] = frozenset({"alertname", "source", "stream"})

    kind: Literal["alertmanager"]
    urls: Annotated[tuple[Address, ...], Field(min_length=1, max_length=16, strict=False)]
    alertname: LabelText = "SottoAlert"
    labels: Annotated[dict[LabelName, LabelText], Field(max_length=32)] = {}
    resend: Span = "1m"
    resolve_after: Span = "15m"
    look_back: Span = "1d"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of the cluster."""
        return self.urls

    @model_validator(mode="after")
    def _fitting(self) -> AlertmanagerTarget:
        if taken := sorted(name for name in self.labels if name in self.RESERVED or name.startswith("group_")):
            raise ValueError(f"labels: {taken[0]} is made from the alert; name it otherwise")
        if span_ms(self.resend) < 1000:
            raise ValueError("resend: give 1s or more")
        return self


Target = Annotated[WebhookTarget | AlertmanagerTarget, Field(discriminator="kind"), ByKind()]


class AlertsFile(_Strict):
    """All targets, and the address of the monitor's page, to which alerts then link."""

    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=MAX_TARGETS, strict=False)]
    page: Address | None = None

    @model_validator(mode="after")
    def _names_are_used_once(self) -> AlertsFile:
        names = [target.name for target in self.targets]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"targets: the name {repeated[0]} is given twice; name each otherwise")
        return self

    @classmethod
    def read(cls, path: str) -> AlertsFile:
        """Read an owner-only file, and the files that it names; AlertsError says what is wrong."""
        if not path:
            raise AlertsError("no target is known: set SOTTO_ALERTS_FILE to an owner-only JSON file of targets")
        try:
            text = read_secret(Path(path))
        except SecretFileError as error:
            raise AlertsError(str(error)) from None
        if "\ufffd" in text:
            raise AlertsError(f"{path}: write signs that are not ASCII as \\u escapes")
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            raise AlertsError(f"{path}: {describe_at(error, partial(_place, parsed(text)), whole='')}") from None
        if repeats_a_field(text.encode()):
            raise AlertsError(f"{path}: a field is given twice; give each once")
        for target in found.targets:
            target.tls()
            target.bearer()
            if isinstance(target, WebhookTarget):
                target.secrets()
        return found


def _place(given: Any, detail: ErrorDetails) -> list[str]:
    """Name the place of a fault in a file: that of a target by the target's name, if it has one, in place of its number."""
    steps = Place(given)(detail)
    if len(steps) < 2 or steps[0] != "targets":
        return steps
    _, number, *fields = steps
    target = given["targets"][int(number)]
    name = target.get("name") if isinstance(target, dict) else None
    if isinstance(name, str) and re.fullmatch(TARGET_NAME, name) is not None:
        number = name
    return ["targets", number, *fields]


def _read(file: str, target: str, field: str) -> str:
    try:
        return read_secret(Path(file))
    except SecretFileError as error:
        raise AlertsError(f"target {target}: {field}: {error}") from None
