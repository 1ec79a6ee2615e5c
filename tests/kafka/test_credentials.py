"""Passwords, certificates and tokens: wrong ones are reported in one clear line without a secret."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from stream.kafka.acls import AclRole
from stream.kafka.client.broker_connections import SecurityError
from stream.kafka.topic_creation import require_topics
from stream.privacy.noise.keys import NoiseKey
from stream.secret_files import replace_secret, write_secret
from stream.services.processes import Service
from stream.settings import Settings
from tests.kafka.secured import MATRIX, WRONG, Authority, SecuredKafka, variables, writable
from tests.preloaded import command

pytestmark = pytest.mark.kafka


def test_wrong_password_is_reported_in_one_line_without_it(matrix: SecuredKafka) -> None:
    operator = matrix.role(AclRole.OPERATOR, MATRIX)
    wrong = operator.model_copy(update={"sasl_password": SecretStr(WRONG), "sasl_password_file": ""})
    result = command(["source", "show", "vitals"], {**os.environ, **variables(wrong)})
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert (
        f"refuses user '{MATRIX}-operator' or its password; check SOTTO_SASL_USERNAME, SOTTO_SASL_PASSWORD" in line
    )
    assert WRONG not in line


def test_service_with_wrong_password_ends_without_showing_it(matrix: SecuredKafka, tmp_path: Path) -> None:
    worker = matrix.role(AclRole.WORKER, MATRIX)
    wrong = worker.model_copy(update={"sasl_password": SecretStr(WRONG), "sasl_password_file": ""})
    key = tmp_path / "noise.key"
    NoiseKey.generate().save(key)
    with Service("worker", wrong, key, tmp_path / "worker.log") as service:
        assert WRONG not in Path(f"/proc/{service.pid}/cmdline").read_text()
        while service.exit_status is None:
            time.sleep(0.1)
    log = service.log.read_text()
    assert service.exit_status == 1
    assert f"refuses user '{MATRIX}-worker' or its password" in log
    assert WRONG not in log


async def test_broker_with_foreign_certificate_is_refused(matrix: SecuredKafka, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    for settings in (matrix.role(AclRole.OPERATOR, MATRIX), matrix.administrator(MATRIX)):
        with pytest.raises(SecurityError, match=r"certificate of 127.0.0.1.*not accepted.*SOTTO_TLS_CA_FILE"):
            await require_topics(settings.model_copy(update={"tls_ca_file": str(stranger.file)}))


async def test_certificate_of_other_address_is_refused_if_checked(
    matrix: SecuredKafka,
) -> None:
    producer = matrix.role(AclRole.PRODUCER, MATRIX)
    renamed = producer.model_copy(update={"bootstrap": producer.bootstrap.replace("127.0.0.1", "localhost")})
    with pytest.raises(SecurityError, match=r"certificate of localhost.*not accepted.*SOTTO_BOOTSTRAP"):
        await require_topics(renamed)
    await require_topics(renamed.model_copy(update={"tls_check_hostname": False}))


async def test_administrator_without_trusted_certificate_is_refused(matrix: SecuredKafka, tmp_path: Path) -> None:
    admin = matrix.administrator(MATRIX)
    certificate, key = Authority(tmp_path, "stranger").issue("administrator")
    for files in (("", ""), (str(certificate), str(key))):
        shown = dict(zip(("tls_certificate_file", "tls_key_file"), files, strict=True))
        with pytest.raises(SecurityError, match="SOTTO_TLS_CERTIFICATE_FILE"):
            await require_topics(admin.model_copy(update=shown))


async def test_other_mechanism_or_protocol_is_reported_with_setting(matrix: SecuredKafka) -> None:
    producer = matrix.role(AclRole.PRODUCER, MATRIX)
    with pytest.raises(SecurityError, match="does not offer PLAIN; set SOTTO_SASL_MECHANISM"):
        await require_topics(producer.model_copy(update={"sasl_mechanism": "PLAIN"}))
    async with asyncio.timeout(120):
        with pytest.raises(SecurityError, match=r"closes the connection.*SOTTO_SECURITY_PROTOCOL"):
            await require_topics(Settings.of_local_broker(matrix.clients, prefix=MATRIX))


@pytest.mark.parametrize("how", ["file", "command"])
async def test_bearer_token_authenticates_its_principal(matrix: SecuredKafka, tmp_path: Path, how: str) -> None:
    file = tmp_path / "token"
    write_secret(file, unsigned_token(f"{MATRIX}-producer"))
    source = {"sasl_token_file": str(file)} if how == "file" else {"sasl_token_command": f"cat '{file}'"}
    user = matrix.role(AclRole.PRODUCER, MATRIX).model_copy(
        update={"sasl_mechanism": "OAUTHBEARER", "sasl_username": "", "sasl_password_file": "", **source}
    )
    assert await writable(user) == {"queries"}
    replace_secret(file, "no.token")
    with pytest.raises(SecurityError, match="refuses the bearer token; check SOTTO_SASL_TOKEN_FILE"):
        await require_topics(user)


def unsigned_token(subject: str) -> str:
    claims = {"sub": subject, "iat": int(time.time()) - 10, "exp": int(time.time()) + 600}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "none"}, claims)
    ]
    return ".".join([*parts, ""])
