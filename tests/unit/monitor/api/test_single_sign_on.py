"""Single sign-on begins sessions only for people for whom the provider vouches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from stream.monitor.api.single_sign_on import (
    SESSION_COOKIE,
    SIGN_IN_COOKIE,
    SIGN_IN_SECONDS,
    SignOnSettingsError,
    SingleSignOn,
    parse_roles,
)
from stream.monitor.api.tokens import Bearer
from tests.unit.monitor.api.openid_provider import CLIENT, GROUPS, OpenIdProvider, settings_of
from tests.unit.monitor.installation import VIEWER, Installation, WebClient, bearer


@asynccontextmanager
async def signing_in(
    folder: Path, claims: dict[str, Any] | None = None, **changed: Any
) -> AsyncIterator[tuple[WebClient, OpenIdProvider, Installation]]:
    installation = Installation()
    provider = OpenIdProvider(claims or GROUPS, lambda: installation.now)
    async with provider.serve() as issuer:
        sign_on = SingleSignOn(settings_of(folder, issuer, **changed), lambda: installation.now)
        installation.monitor.sign_on = sign_on
        async with installation.web() as client:
            yield client, provider, installation


def cookie(name: str, value: str) -> dict[str, str]:
    return {"Cookie": f"{name}={value}"}


async def start(client: WebClient) -> tuple[str, str]:
    """Return the provider's address to which the browser is sent, and the sign-in's cookie."""
    async with client.get("/sign-in", allow_redirects=False) as response:
        assert response.status == 303
        [header] = response.headers.getall("Set-Cookie")
        assert "HttpOnly" in header
        assert "SameSite=Lax" in header
        assert "Secure" in header
        return response.headers["Location"], response.cookies[SIGN_IN_COOKIE].value


async def finish(client: WebClient, given: dict[str, str], started: str) -> tuple[str, str | None]:
    """Return the address to which the browser is sent, and the session's cookie, if there is one."""
    headers = cookie(SIGN_IN_COOKIE, started)
    async with client.get("/sign-in/callback", params=given, headers=headers, allow_redirects=False) as response:
        assert response.status == 303
        session = response.cookies.get(SESSION_COOKIE)
        return response.headers["Location"], None if session is None else session.OutputString()


async def sign_in(client: WebClient, provider: OpenIdProvider) -> tuple[str, str | None]:
    location, started = await start(client)
    return await finish(client, provider.authorize(location), started)


def value_of(session: str | None) -> str:
    assert session is not None
    return session.split(";")[0].partition("=")[2]


async def test_single_sign_on_gives_the_highest_role(tmp_path: Path) -> None:
    """The cookie is the session; tokens go on, and signing out deletes the cookie."""
    async with signing_in(tmp_path) as (client, provider, _):
        location, session = await sign_in(client, provider)
        assert location == "/"
        assert session is not None
        assert all(one in session for one in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age=14400"))
        assert "Domain" not in session
        headers = cookie(SESSION_COOKIE, value_of(session))
        async with client.get("/api/session", headers=headers) as response:
            assert (response.status, (await response.json())["name"]) == (200, "olga")
            assert (await response.json())["role"] == "operator"
        async with client.get("/api/session", headers=bearer(VIEWER)) as response:
            assert (await response.json())["name"] == "vera"
        async with client.get("/") as response:
            assert 'data-sign-in="/sign-in"' in await response.text()
        async with client.post("/sign-out", headers=headers) as response:
            assert response.status == 204
            assert response.cookies[SESSION_COOKIE]["max-age"] == "0"


async def test_session_ends_by_time_and_with_the_settings(tmp_path: Path) -> None:
    """A new secret or other roles end all sessions; a running monitor closes live connections at the end."""
    async with signing_in(tmp_path) as (client, provider, installation):
        _, session = await sign_in(client, provider)
        cookies = {SESSION_COOKIE: value_of(session)}
        own = installation.monitor.sign_on
        assert own is not None
        person = own.read_session(cookies)
        assert person == Bearer("olga", "operator", "", int(installation.now) + 14_400)
        other = SingleSignOn(settings_of(tmp_path, provider.issuer, roles="viewer=*"), lambda: installation.now)
        assert other.read_session(cookies) is None
        assert installation.monitor.is_valid(person)
        installation.now += 14_400
        assert own.read_session(cookies) is None
        assert not installation.monitor.is_valid(person)


async def test_session_of_another_site_or_a_forged_one_is_refused(tmp_path: Path) -> None:
    async with signing_in(tmp_path) as (client, provider, installation):
        location, started = await start(client)
        _, session = await finish(client, provider.authorize(location), started)
        right = value_of(session)
        claims = {"name": "olga", "role": "operator", "aud": "session", "exp": int(installation.now) + 99}
        forged = [
            jwt.encode({"alg": "HS256"}, claims, OctKey.import_key("another key " * 3)),
            right[:-2] + ("AA" if right[-2:] != "AA" else "BB"),
            started,
            "",
            "eyJhbGciOiJIUzI1NiIsImNyaXQiOjF9.e30.AA",  # a header that the library fails to read: {"alg": "HS256", "crit": 1}
        ]
        for one in forged:
            async with client.get("/api/session", headers=cookie(SESSION_COOKIE, one)) as response:
                assert response.status == 401
        for site in ("cross-site", "same-site"):
            headers = cookie(SESSION_COOKIE, right) | {"Sec-Fetch-Site": site}
            async with client.get("/api/session", headers=headers) as response:
                assert response.status == 401
            async with client.post("/sign-out", headers=headers) as response:
                assert (response.status, SESSION_COOKIE in response.cookies) == (403, False)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nonce", lambda _, claims: claims.update(nonce="another")),
        ("no nonce", lambda _, claims: claims.pop("nonce")),
        ("audience", lambda _, claims: claims.update(aud="another")),
        ("party", lambda _, claims: claims.update(aud=[CLIENT, "another"], azp="another")),
        ("issuer", lambda _, claims: claims.update(iss="https://login.example.org")),
        ("expired", lambda _, claims: claims.update(exp=claims["iat"] - 61)),
        ("no end", lambda _, claims: claims.pop("exp")),
        ("alg none", lambda header, _: header.update(alg="none")),
        ("alg HS256", lambda header, _: header.update(alg="HS256")),
        ("alg RS512", lambda header, _: header.update(alg="RS512")),
        ("key", lambda header, _: header.update(kid="unknown")),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_id_token_for_another_purpose_is_refused(tmp_path: Path, name: str, change: Any) -> None:
    async with signing_in(tmp_path) as (client, provider, _):
        provider.change = change
        if name == "alg HS256":
            # The provider publishes this key.
            provider.key = OctKey.import_key("a shared key " * 3, {"kid": "first"})
        assert await sign_in(client, provider) in {("/#sign-in=failed", None), ("/#sign-in=unavailable", None)}


async def test_redirection_that_belongs_to_no_sign_in_is_refused(tmp_path: Path) -> None:
    """A wrong state, no cookie, a session's cookie, another issuer or an error begin no session."""
    async with signing_in(tmp_path) as (client, provider, installation):
        location, started = await start(client)
        given = provider.authorize(location)
        assert await finish(client, {**given, "state": "another"}, started) == ("/#sign-in=expired", None)
        assert await finish(client, given, "") == ("/#sign-in=expired", None)
        _, another = await start(client)
        assert await finish(client, given, another) == ("/#sign-in=expired", None)
        assert await finish(client, {**given, "iss": "https://evil"}, started) == ("/#sign-in=failed", None)
        denied = {"error": "access_denied", "state": given["state"]}
        assert await finish(client, denied, started) == ("/#sign-in=denied", None)
        assert await finish(client, {**given, "code": "another"}, started) == ("/#sign-in=failed", None)
        installation.now += SIGN_IN_SECONDS
        assert await finish(client, given, started) == ("/#sign-in=expired", None)


async def test_redirection_goes_to_configured_page_only(tmp_path: Path) -> None:
    """Neither the request's host nor a parameter changes the address to which code and browser are sent."""
    async with signing_in(tmp_path) as (client, provider, _):
        headers = {"Host": "evil.example.org", "X-Forwarded-Host": "evil.example.org"}
        async with client.get(
            "/sign-in?next=https://evil.example.org", headers=headers, allow_redirects=False
        ) as response:
            location, started = response.headers["Location"], response.cookies[SIGN_IN_COOKIE].value
        given = provider.authorize(location)
        assert "redirect_uri=https://sotto.example.org/sign-in/callback" in location
        assert "evil" not in location
        more = {**given, "next": "https://evil.example.org", "redirect_uri": "https://evil.example.org"}
        assert (await finish(client, more, started))[0] == "/"


async def test_keys_that_the_provider_rotates_are_read_again(tmp_path: Path) -> None:
    """An unknown key is looked for at most once in ten seconds."""
    async with signing_in(tmp_path) as (client, provider, installation):
        assert (await sign_in(client, provider))[0] == "/"
        provider.key = RSAKey.generate_key(2048, {"kid": "second"})
        assert (await sign_in(client, provider))[0] == "/#sign-in=failed"
        assert provider.keys_read == 1
        installation.now += 10
        assert (await sign_in(client, provider))[0] == "/"
        assert provider.keys_read == 2


async def test_unreadable_keys_do_not_hide_readable_ones(tmp_path: Path) -> None:
    """A provider may publish keys of later forms; without any readable key, the known ones stay."""
    async with signing_in(tmp_path) as (client, provider, installation):
        point = {"kty": "EC", "x": "AA", "y": "AA"}
        provider.more_keys = [{**point, "crv": "P-999"}, point, {"kty": "RSA", "n": 5}, {"kty": []}, 7]
        assert (await sign_in(client, provider))[0] == "/"
        right = provider.key
        provider.key = OctKey.import_key("no public key " * 3, {"kid": "first"})
        installation.now += 3600
        provider.change = lambda header, _: header.update(alg="HS256")
        assert (await sign_in(client, provider))[0] == "/#sign-in=unavailable"
        provider.key, provider.change = right, lambda _header, _claims: None
        assert (await sign_in(client, provider))[0] == "/"


@pytest.mark.parametrize(
    ("claims", "changed", "found"),
    [
        ({"sub": "ben", "groups": ["others"]}, {}, "/#sign-in=role"),
        ({"sub": "ben"}, {}, "/#sign-in=role"),
        ({"sub": "ben"}, {"roles": "viewer=*"}, "/"),
        ({"sub": "ben", "role": "staff"}, {"role_claim": "role"}, "/"),
        ({"sub": "two words", "groups": ["staff"]}, {}, "/#sign-in=role"),
        ({"email": "ben@example.org", "groups": ["staff"]}, {"name_claim": "email"}, "/"),
        (
            {"email": "ben@example.org", "email_verified": False, "groups": ["staff"]},
            {"name_claim": "email"},
            "/#sign-in=role",
        ),
        (
            {"email": "ben@example.org", "email_verified": "false", "groups": ["staff"]},
            {"name_claim": "email"},
            "/#sign-in=role",
        ),
    ],
)
async def test_person_needs_a_name_and_a_role(
    tmp_path: Path, claims: dict[str, Any], changed: dict[str, Any], found: str
) -> None:
    async with signing_in(tmp_path, claims, **changed) as (client, provider, _):
        assert (await sign_in(client, provider))[0] == found


@pytest.mark.parametrize("field", ["issuer", "token_endpoint"])
async def test_provider_of_another_name_or_without_tls_is_refused(tmp_path: Path, field: str) -> None:
    async with signing_in(tmp_path) as (client, provider, _):
        provider.configured = {field: "http://login.example.org"}
        async with client.get("/sign-in", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/#sign-in=unavailable")


async def test_monitor_without_single_sign_on_lacks_its_paths() -> None:
    async with Installation().web() as client:
        for path in ("/sign-in", "/sign-in/callback"):
            async with client.get(path) as response:
                assert response.status == 401
        async with client.get("/") as response:
            assert "data-sign-in" not in await response.text()


def test_settings_of_single_sign_on_are_checked_at_the_start(tmp_path: Path) -> None:
    for changed, words in [
        ({"issuer": "http://login.example.org"}, "ISSUER: is no https address"),
        ({"address": "http://sotto.example.org"}, "ADDRESS: is no https address"),
        ({"client_id": ""}, "CLIENT_ID: is not set"),
        ({"roles": "admin=staff"}, "ROLES: is not a list of roles"),
    ]:
        with pytest.raises(SignOnSettingsError, match=words):
            SingleSignOn(settings_of(tmp_path, **{"issuer": "https://login.example.org", **changed}))
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(SignOnSettingsError, match="SECRET_FILE: has fewer than 20 characters"):
        SingleSignOn(settings_of(tmp_path, issuer="https://login.example.org"))
    assert [*parse_roles("viewer=*,operator=a")] == ["operator", "viewer"]
