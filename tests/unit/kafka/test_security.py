"""Settings for Kafka: they must fit together, their errors name the setting, and nothing shows a secret."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
from pydantic import SecretStr, ValidationError

from stream.kafka.broker_addresses import server_properties
from stream.kafka.broker_process import Ports, java_environment
from stream.kafka.client import broker_connections
from stream.kafka.client.broker_connections import (
    BearerToken,
    SecurityError,
    connection_options,
    describe_error,
    raise_if_refused,
)
from stream.secret_files import write_secret
from stream.settings import Settings
from tests.kafka.secured import Authority

SECRET = "geheim-1234"  # noqa: S105  (it opens nothing)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    write_secret(file, SECRET)
    return file


def secure_settings(**given: Any) -> Settings:
    return Settings.of_local_broker("kafka:9093", **given)


def test_connection_options_without_security_have_address_only() -> None:
    assert connection_options(secure_settings()) == {"bootstrap_servers": "kafka:9093"}


def test_connection_options_for_scram_check_names_and_read_password(
    authority: Authority, password_file: Path
) -> None:
    options = connection_options(
        secure_settings(
            security_protocol="SASL_SSL",
            sasl_username="alice",
            sasl_password_file=str(password_file),
            tls_ca_file=str(authority.file),
        )
    )
    context = options.pop("ssl_context")
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert options == {
        "bootstrap_servers": "kafka:9093",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": SECRET,
    }


def test_connection_options_without_name_check_verify_certificate(authority: Authority) -> None:
    options = connection_options(
        secure_settings(security_protocol="SSL", tls_ca_file=str(authority.file), tls_check_hostname=False)
    )
    context = options["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


SASL = {"security_protocol": "SASL_SSL", "sasl_username": "alice"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"sasl_username": "alice"},
            "SOTTO_SASL_USERNAME: has no effect while SOTTO_SECURITY_PROTOCOL is PLAINTEXT",
        ),
        (
            {"tls_ca_file": "/ca.pem"},
            "SOTTO_TLS_CA_FILE: has no effect while SOTTO_SECURITY_PROTOCOL is PLAINTEXT",
        ),
        ({"security_protocol": "SSL", "sasl_password": SECRET}, "SOTTO_SASL_PASSWORD: has no effect"),
        ({"security_protocol": "SASL_PLAINTEXT", "tls_check_hostname": False}, "SOTTO_TLS_CHECK_HOSTNAME: has no"),
        ({"security_protocol": "SASL_SSL"}, "SOTTO_SASL_USERNAME: is needed for SCRAM-SHA-512"),
        (SASL, "SOTTO_SASL_PASSWORD_FILE: for SCRAM-SHA-512, set either this or SOTTO_SASL_PASSWORD"),
        (
            SASL | {"sasl_password": SECRET, "sasl_password_file": "/p"},
            "SOTTO_SASL_PASSWORD_FILE: for .* set either",
        ),
        (SASL | {"sasl_password_file": "/nowhere"}, "SOTTO_SASL_PASSWORD_FILE: cannot read file /nowhere"),
        (
            SASL | {"sasl_mechanism": "OAUTHBEARER"},
            "SOTTO_SASL_TOKEN_FILE: for OAUTHBEARER, set either this or SOTTO_SASL_TOKEN_COMMAND",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_password": SECRET},
            "SOTTO_SASL_MECHANISM: PLAIN sends its secret unencrypted; set SOTTO_SECURITY_PROTOCOL to SASL_SSL",
        ),
        ({"security_protocol": "SSL", "tls_ca_file": "/nowhere"}, "SOTTO_TLS_CA_FILE: cannot use /nowhere"),
        ({"security_protocol": "SSL", "tls_key_file": "/key"}, "SOTTO_TLS_CERTIFICATE_FILE: is missing, although"),
        (
            {"security_protocol": "SSL", "tls_certificate_file": "/cert"},
            "SOTTO_TLS_KEY_FILE: is missing, although",
        ),
    ],
)
def test_connection_options_refuse_conflicts_without_secret(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SecurityError, match=message) as caught:
        connection_options(secure_settings(**given))
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_connection_options_refuse_open_and_wrong_files(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("somebody")
    files = {
        "tls_certificate_file": str(certificate),
        "tls_key_file": str(key),
        "tls_ca_file": str(authority.file),
    }
    assert connection_options(secure_settings(security_protocol="SSL", **files))["ssl_context"]
    with pytest.raises(SecurityError, match=r"SOTTO_TLS_CA_FILE: cannot use .*; give a PEM file"):
        connection_options(secure_settings(security_protocol="SSL", **files | {"tls_ca_file": str(key)}))
    _, other = authority.issue("somebody-else")
    with pytest.raises(SecurityError, match=r"SOTTO_TLS_CERTIFICATE_FILE: .*KEY_VALUES_MISMATCH"):
        connection_options(secure_settings(security_protocol="SSL", **files | {"tls_key_file": str(other)}))
    key.chmod(0o644)
    with pytest.raises(SecurityError, match=r"SOTTO_TLS_KEY_FILE: .*open to others; run 'chmod 600"):
        connection_options(secure_settings(security_protocol="SSL", **files))
    empty = tmp_path / "empty"
    write_secret(empty, "")
    with pytest.raises(SecurityError, match=r"SOTTO_SASL_PASSWORD_FILE: .* must contain at least one character"):
        connection_options(secure_settings(**SASL, sasl_password_file=str(empty)))


def test_connection_options_refuse_encrypted_key_without_prompt(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  (needed here alone)

    certificate, key = authority.issue("locked")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    encryption = serialization.BestAvailableEncryption(SECRET.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    write_secret(locked, loaded.private_bytes(*form, encryption).decode())
    with pytest.raises(SecurityError, match="SOTTO_TLS_KEY_FILE: is encrypted; decrypt it"):
        connection_options(
            secure_settings(
                security_protocol="SSL", tls_certificate_file=str(certificate), tls_key_file=str(locked)
            )
        )


def test_settings_and_errors_hide_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_SASL_PASSWORD", SECRET)
    settings = Settings()
    assert settings.sasl_password.get_secret_value() == SECRET
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert SECRET not in shown
    monkeypatch.setenv("SOTTO_PARTITIONS", SECRET)
    monkeypatch.setenv("SOTTO_SECURITY_PROTOCOL", SECRET)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert SECRET not in str(caught.value)


def test_settings_of_local_broker_omit_security(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "SOTTO_SECURITY_PROTOCOL": "SASL_SSL",
        "SOTTO_SASL_PASSWORD": SECRET,
        "SOTTO_TLS_CA_FILE": "/ca.pem",
        "SOTTO_PARTITIONS": "7",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings.of_local_broker("127.0.0.1:9092")
    assert connection_options(settings) == {"bootstrap_servers": "127.0.0.1:9092"}
    assert settings.partitions == 7
    assert "replication" not in settings.model_fields_set  # a default value is no explicit setting
    assert SECRET not in java_environment().values()


async def test_token_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    write_secret(file, "first.token")
    provider = connection_options(secure_settings(**given, sasl_token_file=str(file)))["sasl_oauth_token_provider"]
    assert await provider.token() == "first.token"
    file.write_text("second.token\n")
    assert await provider.token() == "second.token"
    file.chmod(0o640)
    with pytest.raises(SecurityError, match=r"SOTTO_SASL_TOKEN_FILE: .*open to others"):
        await provider.token()


async def test_token_command_prints_token_or_is_named_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def provider(code: str) -> BearerToken:
        return BearerToken(secure_settings(sasl_token_command=f'"{sys.executable}" -c "{code}"'))

    assert await provider("print('a.b.c')").token() == "a.b.c"
    assert SECRET not in repr(provider(f"print('{SECRET}')"))
    for code in (f"print('{SECRET}'); raise SystemExit(3)", "pass", "print('ü')"):
        with pytest.raises(SecurityError, match="SOTTO_SASL_TOKEN_COMMAND: ended with status") as caught:
            await provider(code).token()
        assert SECRET not in str(caught.value)
    for command in ("/nowhere/at/all", "'"):
        with pytest.raises(SecurityError, match="SOTTO_SASL_TOKEN_COMMAND: cannot be run"):
            await BearerToken(secure_settings(sasl_token_command=command)).token()
    monkeypatch.setattr(broker_connections, "TOKEN_SECONDS", 0.05)
    with pytest.raises(SecurityError, match="SOTTO_SASL_TOKEN_COMMAND: did not end within"):
        await provider("import time; time.sleep(60)").token()


def test_describe_error_gives_fitting_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check that the broker in SOTTO_BOOTSTRAP runs" in describe_error(KafkaConnectionError("x"))
    assert "check that the broker in SOTTO_BOOTSTRAP runs" in describe_error(RequestTimedOutError())
    refused = describe_error(TopicAuthorizationFailedError({"sotto.control"}))
    assert "(sotto.control)" in refused
    assert "sotto topics acl" in refused
    assert "this principal lacks a right" in describe_error(GroupAuthorizationFailedError("sotto-workers"))
    monkeypatch.setenv("SOTTO_SASL_USERNAME", "billing")
    named = describe_error(TopicAuthorizationFailedError({"sotto.queries"}))
    assert "(sotto.queries); user 'billing' (SOTTO_SASL_USERNAME) lacks a right" in named
    assert named.endswith("with --apply --role ROLE --principal User:billing")
    assert describe_error(SecurityError("as it is")) == "as it is"
    login = describe_error(SaslAuthenticationFailed("x"))
    assert (
        "the login failed: check SOTTO_SASL_MECHANISM, SOTTO_SASL_USERNAME and SOTTO_SASL_PASSWORD_FILE" in login
    )


@pytest.mark.parametrize(
    ("protocol", "error", "message"),
    [
        ("SSL", ConnectionResetError(), r"TLS with kafka:9093 failed.*check SOTTO_SECURITY_PROTOCOL \(SSL\)"),
        ("SASL_SSL", IllegalSaslStateError(), r"asks for no login; set SOTTO_SECURITY_PROTOCOL to SSL, or"),
        ("SASL_PLAINTEXT", IllegalSaslStateError(), r"to PLAINTEXT, or SOTTO_BOOTSTRAP to a listener"),
    ],
)
async def test_broker_without_tls_or_login_is_named(
    monkeypatch: pytest.MonkeyPatch, protocol: str, error: Exception, message: str
) -> None:
    """The errors are those of a broker whose listener is PLAINTEXT."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(broker_connections, "create_conn", fail)
    user = {} if protocol == "SSL" else {"sasl_username": "ann", "sasl_password": SecretStr(SECRET)}
    with pytest.raises(SecurityError, match=message):
        await raise_if_refused(secure_settings(security_protocol=protocol, **user))


def test_server_properties_without_security_are_plaintext() -> None:
    text = server_properties(Ports(9092, 9093), data_folder="data", extra={})
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert "authorizer.class.name" not in lines


def test_password_in_environment_is_accepted() -> None:
    assert os.environ.get("SOTTO_SASL_PASSWORD") is None
    given = secure_settings(security_protocol="SASL_PLAINTEXT", sasl_username="a", sasl_password=SecretStr(SECRET))
    assert connection_options(given)["sasl_plain_password"] == SECRET


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        (
            "certificate has expired",
            "check this machine's clock; if it is right, renew the certificate or its authority's",
        ),
        (
            "certificate is not yet valid",
            "check this machine's clock; if it is right, renew the certificate or its authority's",
        ),
        ("unable to get local issuer certificate", "SOTTO_TLS_CA_FILE must name the file of the authority"),
    ],
)
async def test_refused_certificate_names_its_remedy(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, problem: str, remedy: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        error = ssl.SSLCertVerificationError()
        error.verify_message = problem
        raise error

    monkeypatch.setattr(broker_connections, "create_conn", refuse)
    settings = Settings(bootstrap="kafka:9093", security_protocol="SSL", tls_ca_file=str(authority.file))
    with pytest.raises(SecurityError) as refused:
        await raise_if_refused(settings)
    assert str(refused.value).startswith(f"the certificate of kafka:9093 is not accepted ({problem}); {remedy}")
