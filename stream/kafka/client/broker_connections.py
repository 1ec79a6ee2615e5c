"""Connects to Kafka: address, TLS and credentials, descriptions of errors, and retries.

Secrets never occur in an error, a log line, a ``repr`` or on a command line. Passwords and
certificates are read for each client, tokens for each connection.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from aiokafka import errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import collect_hosts, create_conn

from stream.diagnostics import get_logger
from stream.kafka.broker_addresses import address_origin
from stream.kafka.client.client_patches import ExplainedError, KafkaAdmin
from stream.secret_files import SecretFileError, read_secret
from stream.settings import SECRET_VARIABLES, SECURITY_FIELDS, Settings, environment_without, variable_of

TOKEN_SECONDS = 10.0
"""Maximum run time in seconds of the command for a bearer token."""
PROBE_SECONDS = 5.0
"""Maximum time in seconds of a trial connection, by which Sotto learns why a broker refuses connections."""

_CLEARTEXT_MECHANISMS: Final = frozenset({"PLAIN", "OAUTHBEARER"})
_REFUSALS: Final = (
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
_LOGIN_FAILURES: Final = (
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)


class SecurityError(ExplainedError):
    """A setting prevents the connection to Kafka; the message names the setting."""


class UnansweredError(ExplainedError, errors.KafkaConnectionError):  # type: ignore[misc]  # aiokafka is not typed
    """No broker answers; the message names the address and its origin."""


class ClosedError(SecurityError):
    """A broker closes the connection, because it expects another protocol, or is starting or stopping."""


def connection_options(settings: Settings) -> dict[str, Any]:
    """Returns the connection options of aiokafka's clients.

    SecurityError if settings contradict each other, or a file cannot be used.
    """
    options: dict[str, Any] = {"bootstrap_servers": settings.bootstrap}
    protocol = settings.security_protocol
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for field in SECURITY_FIELDS:
        is_set = getattr(settings, field) != type(settings).model_fields[field].default
        if is_set and ((field.startswith("tls_") and not tls) or (field.startswith("sasl_") and not sasl)):
            wanted = "SSL or SASL_SSL" if field.startswith("tls_") else "SASL_SSL"
            _raise_security_error(
                field,
                f"has no effect while {variable_of('security_protocol')} is {protocol}; set that to {wanted}",
            )
    if protocol == "PLAINTEXT":
        return options
    options["security_protocol"] = protocol
    if tls:
        options["ssl_context"] = _tls_context(settings)
    if sasl:
        options |= _sasl_options(settings)
    return options


@asynccontextmanager
async def admin_client(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Starts an admin client, and closes it at the end.

    SecurityError if Kafka refuses the credentials, or its certificate is not trusted. UnansweredError if no broker
    answers.
    """
    admin = KafkaAdmin(**connection_options(settings))
    try:
        try:
            await admin.start()
        except errors.KafkaConnectionError:
            await raise_if_refused(settings)
            # The local broker of Sotto has neither TLS nor logins.
            is_local = settings.security_protocol == "PLAINTEXT"
            start = "start one with 'sotto broker start' or 'sotto up', or" if is_local else "start it, or"
            raise UnansweredError(
                f"no broker answers at {settings.bootstrap} ({address_origin(settings)}); {start} set {variable_of('bootstrap')}"
            ) from None
        yield admin
    except errors.NodeNotReadyError:
        # aiokafka does not notice that a token is refused, and then finds no broker.
        if settings.sasl_mechanism == "OAUTHBEARER":
            raise SecurityError(_authentication_message(settings, settings.bootstrap)) from None
        raise
    finally:
        await admin.close()


async def raise_if_refused(settings: Settings) -> None:
    """Connects to each broker once; raises a SecurityError if one refuses."""
    options = connection_options(settings)
    for host, port, _ in collect_hosts(options.pop("bootstrap_servers"), randomize=False):
        try:
            connected = await create_conn(host, port, request_timeout_ms=int(PROBE_SECONDS * 1000), **options)
        except SecurityError:
            raise
        except ssl.SSLCertVerificationError as error:
            problem = f"the certificate of {host}:{port} is not accepted ({error.verify_message})"
            raise SecurityError(f"{problem}; {_certificate_remedy(error.verify_message)}") from None
        except ssl.SSLError as error:
            raise SecurityError(
                f"TLS with {host}:{port} failed ({error.reason or 'refused'}); check {variable_of('security_protocol')}, and {variable_of('tls_certificate_file')} if the broker asks for a certificate"
            ) from None
        except errors.SaslAuthenticationFailed:
            raise SecurityError(_authentication_message(settings, f"{host}:{port}")) from None
        except errors.UnsupportedSaslMechanismError:
            raise SecurityError(
                f"{host}:{port} does not offer {settings.sasl_mechanism}; set {variable_of('sasl_mechanism')} to a mechanism that the broker offers"
            ) from None
        except errors.KafkaConnectionError:
            raise ClosedError(
                f"{host}:{port} closes the connection; unless it is starting or stopping, check {variable_of('security_protocol')} "
                f"({settings.security_protocol}), and {variable_of('tls_certificate_file')} if it asks for a certificate (unexpired, of a known authority)"
            ) from None
        except (OSError, errors.KafkaError) as error:
            _raise_if_listener_differs(error, settings, f"{host}:{port}")
            continue
        await connected.close()


def _certificate_remedy(problem: str) -> str:
    if problem.startswith(("Hostname mismatch", "IP address mismatch")):
        return f"name the broker in {variable_of('bootstrap')} as its certificate does"
    if problem in {"certificate is not yet valid", "certificate has expired"}:
        return "check this machine's clock; if it is right, renew the certificate or its authority's"
    return f"{variable_of('tls_ca_file')} must name the file of the authority that signed it"


def _raise_if_listener_differs(error: Exception, settings: Settings, broker: str) -> None:
    """Raises a SecurityError if the error is that of a listener without login or without TLS."""
    protocol = settings.security_protocol
    if isinstance(error, errors.IllegalSaslStateError):
        raise SecurityError(
            f"{broker} asks for no login; set {variable_of('security_protocol')} to {protocol.removeprefix('SASL_')}, or "
            f"{variable_of('bootstrap')} to a listener that asks for {settings.sasl_mechanism}"
        ) from None
    if isinstance(error, ConnectionResetError) and protocol.endswith("SSL"):
        raise ClosedError(
            f"TLS with {broker} failed, because it closes the connection; unless it is starting or stopping, check "
            f"{variable_of('security_protocol')} ({protocol}) and the port in {variable_of('bootstrap')}: the broker may expect a "
            "connection without TLS"
        ) from None


def is_refusal(error: errors.KafkaError) -> bool:
    """Returns whether Kafka denies this principal an operation."""
    return isinstance(error, _REFUSALS)


def describe_error(error: errors.KafkaError | OSError) -> str:
    """Describes an error of Kafka or of the connection in one line with a remedy."""
    if isinstance(error, ExplainedError):
        return str(error)
    if isinstance(error, _LOGIN_FAILURES):
        return f"Kafka: {type(error).__name__}; the login failed: check {variable_of('sasl_mechanism')}, {variable_of('sasl_username')} and {variable_of('sasl_password_file')}, or {variable_of('sasl_token_file')}"
    if isinstance(error, _REFUSALS):
        is_named = bool(error.args) and isinstance(error.args[0], set | frozenset | list | tuple)
        named = f" ({', '.join(sorted(map(str, error.args[0])))})" if is_named else ""
        name = os.environ.get(variable_of("sasl_username"), "")
        user = f"user '{name}' ({variable_of('sasl_username')})" if name else "this principal"
        return (
            f"Kafka: {type(error).__name__}{named}; {user} lacks a right: 'sotto topics acl' lists what each role may, "
            f"and an administrator gives a role with --apply --role ROLE --principal User:{name or 'NAME'}"
        )
    return f"Kafka: {type(error).__name__}; check that the broker in {variable_of('bootstrap')} runs, or start one with 'sotto broker start'"


def _authentication_message(settings: Settings, broker: str) -> str:
    if settings.sasl_mechanism == "OAUTHBEARER":
        return f"{broker} refuses the bearer token; check {variable_of('sasl_token_file')} or {variable_of('sasl_token_command')}"
    return (
        f"{broker} refuses user '{settings.sasl_username}' or its password; check {variable_of('sasl_username')}, "
        f"{variable_of('sasl_password_file')} and {variable_of('sasl_mechanism')} ({settings.sasl_mechanism})"
    )


def _tls_context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
    except OSError as error:  # also SSLError
        _raise_security_error(
            "tls_ca_file",
            f"cannot use {settings.tls_ca_file} ({_describe_file_error(error)}); give a PEM file of certificates",
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.tls_check_hostname
    if settings.tls_key_file and not settings.tls_certificate_file:
        _raise_security_error(
            "tls_certificate_file", f"is missing, although {variable_of('tls_key_file')} is set; set both"
        )
    if settings.tls_certificate_file:
        if not settings.tls_key_file:
            _raise_security_error(
                "tls_key_file", f"is missing, although {variable_of('tls_certificate_file')} is set; set both"
            )
        _read_secret("tls_key_file", settings.tls_key_file)
        try:
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file, _refuse_encrypted_key)
        except OSError as error:
            _raise_security_error(
                "tls_certificate_file",
                f"cannot use {settings.tls_certificate_file} with its key ({_describe_file_error(error)})",
            )
    return context


def _describe_file_error(error: OSError) -> str:
    return (error.reason or "not PEM") if isinstance(error, ssl.SSLError) else (error.strerror or "unreadable")


def _refuse_encrypted_key() -> str:
    """Raises a SecurityError for an encrypted key: OpenSSL would ask for a password."""
    _raise_security_error("tls_key_file", "is encrypted; decrypt it into an owner-only file")


def _sasl_options(settings: Settings) -> Mapping[str, Any]:
    mechanism = settings.sasl_mechanism
    if mechanism in _CLEARTEXT_MECHANISMS and settings.security_protocol != "SASL_SSL":
        _raise_security_error(
            "sasl_mechanism",
            f"{mechanism} sends its secret unencrypted; set {variable_of('security_protocol')} to SASL_SSL",
        )
    options: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        if bool(settings.sasl_token_file) == bool(settings.sasl_token_command):
            _raise_security_error(
                "sasl_token_file", f"for OAUTHBEARER, set either this or {variable_of('sasl_token_command')}"
            )
        return options | {"sasl_oauth_token_provider": BearerToken(settings)}
    if not settings.sasl_username:
        _raise_security_error("sasl_username", f"is needed for {mechanism}")
    given = settings.sasl_password.get_secret_value()
    if bool(given) == bool(settings.sasl_password_file):
        _raise_security_error(
            "sasl_password_file", f"for {mechanism}, set either this or {variable_of('sasl_password')}"
        )
    password = given or _read_secret("sasl_password_file", settings.sasl_password_file)
    return options | {"sasl_plain_username": settings.sasl_username, "sasl_plain_password": password}


def _read_secret(field: str, path: str) -> str:
    try:
        secret = read_secret(Path(path))
    except SecretFileError as error:
        _raise_security_error(field, str(error))
    if not secret or "\N{REPLACEMENT CHARACTER}" in secret:
        _raise_security_error(field, f"{path} must contain at least one character, and only ASCII")
    return secret


def _raise_security_error(field: str, why: str) -> NoReturn:
    raise SecurityError(f"{variable_of(field)}: {why}") from None


class BearerToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """Reads the bearer token of each new connection from a file or a command."""

    def __init__(self, settings: Settings) -> None:
        """Takes the settings; ``_sasl_options`` has checked that they name a file or a command."""
        self._file = settings.sasl_token_file
        self._command = settings.sasl_token_command

    async def token(self) -> str:
        """Returns the current token, or raises a SecurityError."""
        if self._file:
            return await asyncio.to_thread(_read_secret, "sasl_token_file", self._file)
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self._command),
                env=environment_without(SECRET_VARIABLES),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (OSError, ValueError) as error:
            _raise_security_error("sasl_token_command", f"cannot be run ({type(error).__name__})")
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                printed, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            _raise_security_error("sasl_token_command", f"did not end within {TOKEN_SECONDS:g} seconds")
        token = printed.decode("ascii", errors="replace").strip()
        if process.returncode or not token or not token.isascii():
            _raise_security_error(
                "sasl_token_command", f"ended with status {process.returncode} and printed no usable token"
            )
        return token


RETRY_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts after consecutive failures."""
BROKER_ATTEMPTS: Final = 10
"""Number of attempts, each with a random broker, after which all brokers count as unavailable."""
BROKER_RETRY_SECONDS: Final = 0.2
"""Seconds between these attempts; aiokafka updates its list of brokers after each failure."""

Result = TypeVar("Result")

log = get_logger("start")


class Stopped(Exception):  # noqa: N818  (a stop is not an error)
    """A stop signal interrupted an attempt; the next process completes the work."""


async def retry_until_available(
    start: Callable[[], Awaitable[Result]], stopping: asyncio.Event, report: Callable[[str], None] | None = None
) -> Result:
    """Calls ``start`` until it succeeds, with growing pauses; reports each failure to the log and ``report``.

    Stopped if ``stopping`` was set. KafkaError for a permanent error, such as a refused password.
    """
    for pause in chain(RETRY_PAUSES, repeat(RETRY_PAUSES[-1])):
        try:
            return await unless_stopped(stopping, start())
        except (errors.KafkaError, OSError, TimeoutError) as error:
            if not is_temporary(error):
                raise
            reason = describe_error(error)
            log.warning("waiting for Kafka", reason=reason, seconds=pause)
            if report is not None:
                report(f"waits for Kafka: {reason}")
        if await wait_for_stop(stopping, pause):
            raise Stopped
    raise AssertionError("pauses do not end")


async def wait_for_stop(stopping: asyncio.Event, seconds: float) -> bool:
    """Waits for ``stopping``, at most ``seconds``; returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return stopping.is_set()


async def unless_stopped(stopping: asyncio.Event, attempt: Awaitable[Result]) -> Result:
    """Returns the result of an attempt; a stop cancels the attempt and waits for its cleanup.

    Stopped if ``stopping`` was set before the attempt was done.
    """
    trying = asyncio.ensure_future(attempt)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({trying, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not trying.done():
            raise Stopped
        return trying.result()
    finally:
        for waiting in (trying, stopped):
            waiting.cancel()
        await asyncio.gather(trying, stopped, return_exceptions=True)
        # The attempt's error refers to this frame. Without this line, a reference cycle would keep the attempt's objects.
        del trying


async def ask_any_broker(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Retries a request of an admin client, because the client may choose a dead broker.

    NodeNotReadyError or KafkaConnectionError if none of ``BROKER_ATTEMPTS`` chosen brokers has answered.
    """
    for _ in range(BROKER_ATTEMPTS - 1):
        with suppress(errors.NodeNotReadyError, errors.KafkaConnectionError):
            return await ask()
        await asyncio.sleep(BROKER_RETRY_SECONDS)
    return await ask()


def is_temporary(error: Exception) -> bool:
    """Returns whether an error is temporary: it may end when a broker starts or becomes leader."""
    return not isinstance(error, errors.KafkaError) or bool(error.retriable) or isinstance(error, ClosedError)
