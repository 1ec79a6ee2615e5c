"""The alerts file: each target with its address, its secret files and its streams."""

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

from schemas.base import ByKind, repeats_a_field
from schemas.windows import Span, span_ms
from schemas.wire import describe_faults, locate_fault, parse_or_none
from stream.questions.alert_states import matches_patterns
from stream.secret_files import SecretFileError, read_secret

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  (a prefix)
MIN_KEY_BYTES: Final = 24
MAX_KEY_BYTES: Final = 64


class Secret(NamedTuple):
    """A key of 24 to 64 bytes that signs webhooks; ``repr`` hides it."""

    key: bytes

    def __repr__(self) -> str:
        return "<secret>"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a secret: ``whsec_`` and base64, as in Standard Webhooks; ValueError if invalid."""
        try:
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not text.startswith(SECRET_PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise ValueError(
                f"is not a secret; give {SECRET_PREFIX} and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} random bytes in base64, as "
                '\'printf "whsec_%s" "$(openssl rand -base64 32)"\' makes it'
            )
        return cls(key)


def signed_headers(secrets: Sequence[Secret], alert_key: str, sent_at: int, body: bytes) -> dict[str, str]:
    """Return the headers of a webhook: alert key, Unix time, one signature for each secret."""
    content = f"{alert_key}.{sent_at}.".encode() + body
    signatures = (
        base64.b64encode(hmac.digest(secret.key, content, hashlib.sha256)).decode() for secret in secrets
    )
    return {
        "webhook-id": alert_key,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


MAX_TARGETS: Final = 32


class AlertsError(RuntimeError):
    """The alerts file is invalid; the message names the field but no address or secret."""


def _check_address(text: str) -> str:
    # Check the characters first: urlsplit removes some of them silently.
    if bad_character := next(
        (character for character in text if character.isspace() or not character.isprintable()), None
    ):
        raise ValueError(
            f"has U+{ord(bad_character):04X}, which is not allowed in an address; remove it, or percent-encode it"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is not an address; give https://host/path") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment or port == 0:
        raise ValueError("is not an HTTP address; give https://host/path")
    if not _is_host(parts.hostname):
        raise ValueError("has an invalid host name; give https://host/path")
    return text


def _is_host(name: str) -> bool:
    if ":" in name:  # an IPv6 address, checked by urlsplit
        return True
    try:
        return re.fullmatch(r"[A-Za-z0-9._-]+", name.encode("idna").decode()) is not None
    except UnicodeError:
        return False


Address = Annotated[str, StringConstraints(min_length=1, max_length=2048), AfterValidator(_check_address)]
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
TARGET_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
Patterns = Annotated[tuple[str, ...], Field(max_length=1000, strict=False)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
LabelText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class _Target(_StrictModel):
    name: Annotated[str, StringConstraints(pattern=TARGET_NAME_PATTERN)]
    streams: Patterns = ()
    sources: Patterns = ()
    timeout: Span = "10s"
    ca_file: FileName = ""
    bearer_file: FileName = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that requests are sent to."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _require_one_credential(self) -> Self:
        """Refuse a target that has both a bearer token and a password in an address."""
        if self.bearer_file and any((parts := urlsplit(one)).username or parts.password for one in self.addresses):
            raise ValueError("bearer_file: an address contains a user name or password too; remove one of the two")
        return self

    def wants(self, source: str, stream: str) -> bool:
        """Return True if this target gets a stream's alerts."""
        return matches_patterns(source, self.sources) and matches_patterns(stream, self.streams)

    @property
    def timeout_seconds(self) -> float:
        """The time limit of one request."""
        return min(max(span_ms(self.timeout) / 1000, 0.1), 60.0)

    def bearer(self) -> str | None:
        """The bearer token, read from its file on every call."""
        if not self.bearer_file:
            return None
        token = _read_secret_file(self.bearer_file, self.name, "bearer_file")
        if re.fullmatch(r"[!-~]+", token) is None:
            found = "is empty" if not token else "contains line breaks, spaces or characters outside ASCII"
            raise AlertsError(
                f"target {self.name}: bearer_file: {self.bearer_file} {found}; put only the token there, on one line"
            )
        return token

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context that verifies the target's certificate."""
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            found = (
                "contains no certificate"
                if isinstance(error, ssl.SSLError)
                else f"cannot be read ({error.strerror})"
            )
            raise AlertsError(
                f"target {self.name}: ca_file: {self.ca_file} {found}; give a PEM file of certificate authorities, or "
                "leave ca_file out to use the system's"
            ) from None


class WebhookTarget(_Target):
    """A receiver of webhooks, which gets each stream's alerts in order and at least once.

    * ``name``: the target in logs, metrics and its consumer group.
    * ``streams``, ``sources``: names or patterns with ``*`` whose alerts it gets; default: all.
    * ``timeout``: time limit of a request, at most 60 s.
    * ``ca_file``: PEM file of the authorities for the target's certificate; default: the system's.
    * ``bearer_file``: owner-only file with a token for ``Authorization``.
    * ``secret_files``: one or two owner-only files. Each alert is signed with every secret; give two
      while the receiver changes from one to the other.
    * ``give_up``: age after which an alert that cannot be delivered is dropped.
    """

    kind: Literal["webhook"]
    url: Address
    secret_files: Annotated[tuple[FileName, ...], Field(min_length=1, max_length=2, strict=False)]
    give_up: Span = "1d"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address ``url``, as a tuple."""
        return (self.url,)

    def secrets(self) -> list[Secret]:
        """Read the secrets from their files on every call, so that a new secret is used at once."""
        found = []
        for file in self.secret_files:
            try:
                found.append(Secret.parse(_read_secret_file(file, self.name, "secret_files")))
            except ValueError as error:
                raise AlertsError(f"target {self.name}: secret_files: {file}: {error}") from None
        return found


class AlertmanagerTarget(_Target):
    """One Alertmanager or a cluster, to which each firing alarm is sent again every ``resend``.

    An alarm is a series of alerts of one stream and group. It is resolved by an answer ``below``, or if no
    answer comes within one window's length plus ``resolve_after``. After a restart, firing alarms are restored
    from the answers of the last ``look_back``. ``urls`` are the addresses of the cluster's members;
    ``alertname`` and ``labels`` are labels of each alarm. The other fields are as for a webhook.
    """

    RESERVED_LABELS: ClassVar[frozenset[str]] = frozenset({"alertname", "source", "stream"})

    kind: Literal["alertmanager"]
    urls: Annotated[tuple[Address, ...], Field(min_length=1, max_length=16, strict=False)]
    alertname: LabelText = "SottoAlert"
    labels: Annotated[dict[LabelName, LabelText], Field(max_length=32)] = {}
    resend: Span = "1m"
    resolve_after: Span = "15m"
    look_back: Span = "1d"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the cluster's members."""
        return self.urls

    @model_validator(mode="after")
    def _check_labels_and_resend(self) -> AlertmanagerTarget:
        if reserved := sorted(
            name for name in self.labels if name in self.RESERVED_LABELS or name.startswith("group_")
        ):
            raise ValueError(f"labels: {reserved[0]} is reserved for the alert; use another name")
        if span_ms(self.resend) < 1000:
            raise ValueError("resend: is less than 1s; give 1s or more")
        return self


Target = Annotated[WebhookTarget | AlertmanagerTarget, Field(discriminator="kind"), ByKind()]


class AlertsFile(_StrictModel):
    """All targets; ``page`` is the monitor's public address, for the links of alerts to their streams."""

    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=MAX_TARGETS, strict=False)]
    page: Address | None = None

    @model_validator(mode="after")
    def _require_distinct_names(self) -> AlertsFile:
        names = [target.name for target in self.targets]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"targets: the name {repeated[0]} is used twice; give each target its own name")
        return self

    @classmethod
    def read(cls, path: str) -> AlertsFile:
        """Read an owner-only file and the files that it names; raise AlertsError if a file is invalid."""
        if not path:
            raise AlertsError("no targets: set SOTTO_ALERTS_FILE to an owner-only JSON file of targets")
        try:
            text = read_secret(Path(path))
        except SecretFileError as error:
            raise AlertsError(str(error)) from None
        if "\ufffd" in text:
            raise AlertsError(f"{path}: contains characters outside ASCII; write them as \\u escapes")
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            raise AlertsError(
                f"{path}: {describe_faults(error, partial(_fault_path, parse_or_none(text)), whole='')}"
            ) from None
        if repeats_a_field(text.encode()):
            raise AlertsError(f"{path}: a field is given twice; give each field once")
        for target in found.targets:
            target.tls()
            target.bearer()
            if isinstance(target, WebhookTarget):
                target.secrets()
        return found


def _fault_path(given: Any, detail: ErrorDetails) -> list[str]:
    """Return the path of a faulty field, with the target's name in place of its index."""
    steps = locate_fault(given, detail)
    if len(steps) < 2 or steps[0] != "targets":
        return steps
    _, number, *fields = steps
    target = given["targets"][int(number)]
    name = target.get("name") if isinstance(target, dict) else None
    if isinstance(name, str) and re.fullmatch(TARGET_NAME_PATTERN, name) is not None:
        number = name
    return ["targets", number, *fields]


def _read_secret_file(file: str, target: str, field: str) -> str:
    try:
        return read_secret(Path(file))
    except SecretFileError as error:
        raise AlertsError(f"target {target}: {field}: {error}") from None
