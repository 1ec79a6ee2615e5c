"""Single sign-on by OpenID Connect: authorization code with PKCE, and a session in a signed cookie.

The monitor keeps no state of sign-ins and sessions. A sign-in's state, nonce and verifier, and later the session, are in
signed cookies. Their key is derived from the client's secret and the mapping of roles, so a new one ends all sessions.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from pydantic import BaseModel, TypeAdapter, ValidationError
from yarl import URL

from schemas.base import Identifier
from stream.diagnostics import get_logger
from stream.monitor.api.http_requests import (
    CALLBACK,
    SIGN_IN,
    SIGN_OUT,
    is_caused_by_another_site,
    refuse_repeated,
)
from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import Bearer
from stream.secret_files import is_encrypted_or_local, read_secret
from stream.settings import Settings

SESSION_COOKIE: Final = "__Host-sotto-session"
"""Browsers do not send cookies with the prefix ``__Host-`` to other hosts or over plain HTTP."""
SIGN_IN_COOKIE: Final = "__Host-sotto-sign-in"
SIGN_IN_SECONDS: Final = 600
"""Longest time between the start of a sign-in and its end."""
_ALGORITHMS: Final = ["RS256", "PS256", "ES256"]
"""Accepted signatures of ID tokens; all of them use public keys."""
_LEEWAY_SECONDS: Final = 60
_KEYS_SECONDS, _KEYS_PAUSE_SECONDS = 3600.0, 10.0
"""Seconds for which the provider's keys are kept, and seconds between two readings because of an unknown key."""
_PROVIDER_SECONDS: Final = 10.0
_MAX_RESPONSE_BYTES: Final = 1 << 20
_TOKEN_ERRORS: Final = (JoseError, ValueError, TypeError)
"""Errors of joserfc for a forged token or key; a header with a wrong type, such as ``crit: 1``, is a TypeError."""
_MIN_SECRET_LENGTH: Final = 20

SignOnFault = Literal["denied", "expired", "failed", "role", "unavailable"]
"""The reason of a failed sign-in that the page shows; it contains only what the person may know."""

_names: TypeAdapter[str] = TypeAdapter(Identifier)

log = get_logger("monitor")


class SignOnError(RuntimeError):
    """A sign-in failed; the message is for the log and quotes no token."""

    def __init__(self, fault: SignOnFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class SignOnSettingsError(RuntimeError):
    """A setting of single sign-on is missing or invalid."""


class _Provider(BaseModel):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] = ["client_secret_basic"]


class StartedSignIn(NamedTuple):
    """The provider's page, to which the browser is redirected, and the sign-in's cookie."""

    location: URL
    cookie: str


class SingleSignOn:
    """Signs people in at one OpenID provider; ``clock`` returns seconds since the epoch."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Check the settings and read the client's secret; the provider is contacted at the first sign-in.

        Raises:
            SignOnSettingsError: a setting is missing or invalid.
            SecretFileError: the secret's file is missing or open to others.
        """
        self._issuer = settings.monitor_oidc_issuer
        self._client = settings.monitor_oidc_client_id
        for name in ("client_id", "client_secret_file", "address", "roles"):
            if not getattr(settings, f"monitor_oidc_{name}"):
                raise SignOnSettingsError(
                    f"SOTTO_MONITOR_OIDC_{name.upper()}: is not set; SOTTO_MONITOR_OIDC_ISSUER needs it"
                )
        _require_https("SOTTO_MONITOR_OIDC_ISSUER", self._issuer)
        address = settings.monitor_oidc_address.rstrip("/")
        _require_https("SOTTO_MONITOR_OIDC_ADDRESS", address)
        self._callback = f"{address}{CALLBACK}"
        self._secret = read_secret(Path(settings.monitor_oidc_client_secret_file))
        if len(self._secret) < _MIN_SECRET_LENGTH:
            raise SignOnSettingsError(
                f"SOTTO_MONITOR_OIDC_CLIENT_SECRET_FILE: has fewer than {_MIN_SECRET_LENGTH} characters, and a cookie would tell "
                "whether a guess is right; let the provider generate the secret"
            )
        self._roles = parse_roles(settings.monitor_oidc_roles)
        self._role_claim, self._name_claim = settings.monitor_oidc_role_claim, settings.monitor_oidc_name_claim
        self._session_seconds = round(settings.monitor_oidc_hours * 3600)
        self._clock = clock
        bound = json.dumps([self._issuer, self._client, self._role_claim, self._name_claim, self._roles])
        key = hmac.digest(self._secret.encode(), f"sotto monitor cookies {bound}".encode(), "sha256")
        self._cookie_key = OctKey.import_key(key)
        self._provider: _Provider | None = None
        self._keys: KeySet | None = None
        self._keys_read_at = float("-inf")
        self._lock = asyncio.Lock()

    def add_routes(self, application: web.Application) -> None:
        """Add the routes; each answers with a redirection to the provider or to the page's own root."""

        async def sign_in(_: web.Request) -> web.Response:
            try:
                started = await self.start()
            except SignOnError as error:
                return _refuse(error)
            response = web.Response(status=303, headers={"Location": str(started.location)})
            # The provider's redirection comes from another site, where a strict cookie is not sent.
            _set_cookie(response, SIGN_IN_COOKIE, started.cookie, SIGN_IN_SECONDS, "Lax")
            return response

        async def callback(request: web.Request) -> web.Response:
            refuse_repeated(request.query)
            try:
                cookie, bearer = await self.finish(request.query, request.cookies)
            except SignOnError as error:
                response = _refuse(error)
            else:
                log.info("signed in", name=bearer.name, role=bearer.role)
                response = web.Response(status=303, headers={"Location": "/"})
                _set_cookie(response, SESSION_COOKIE, cookie, self._session_seconds, "Strict")
            _delete_cookie(response, SIGN_IN_COOKIE)
            return response

        async def sign_out(request: web.Request) -> web.Response:
            if is_caused_by_another_site(request):
                raise web.HTTPForbidden
            response = web.Response(status=204)
            _delete_cookie(response, SESSION_COOKIE)
            return response

        application.router.add_get(SIGN_IN, sign_in)
        application.router.add_get(CALLBACK, callback)
        application.router.add_post(SIGN_OUT, sign_out)

    async def start(self) -> StartedSignIn:
        """Begin a sign-in.

        Raises:
            SignOnError: the provider does not answer, or names another issuer.
        """
        provider = await self._find_provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        location = URL(provider.authorization_endpoint).update_query(
            response_type="code",
            client_id=self._client,
            redirect_uri=self._callback,
            scope="openid profile email",
            state=state,
            nonce=nonce,
            code_challenge=challenge,
            code_challenge_method="S256",
        )
        claims = {"state": state, "nonce": nonce, "verifier": verifier}
        return StartedSignIn(location, self._sign("sign-in", claims, SIGN_IN_SECONDS))

    async def finish(self, parameters: Mapping[str, str], cookies: Mapping[str, str]) -> tuple[str, Bearer]:
        """Return the session's cookie and the person, from the provider's redirection and the sign-in's cookie.

        Raises:
            SignOnError: the redirection does not belong to the cookie, or the provider does not confirm a person.
        """
        started = self._verify("sign-in", cookies.get(SIGN_IN_COOKIE, ""))
        if started is None:
            raise SignOnError("expired", "no sign-in of this browser is under way")
        if not hmac.compare_digest(parameters.get("state", "").encode(), str(started["state"]).encode()):
            raise SignOnError("expired", "the state is another sign-in's")
        if parameters.get("iss", self._issuer) != self._issuer:
            raise SignOnError("failed", "the redirection is another issuer's")
        if "error" in parameters or not parameters.get("code"):
            raise SignOnError("denied", "the provider sent no code")
        claims = await self._read_id_token(
            await self._fetch_id_token(parameters["code"], str(started["verifier"])), str(started["nonce"])
        )
        name, role = self._name_of(claims), self._role_of(claims)
        bearer = Bearer(name, role, "", int(self._clock()) + self._session_seconds)
        return self._sign("session", {"name": name, "role": role}, self._session_seconds), bearer

    def read_session(self, cookies: Mapping[str, str]) -> Bearer | None:
        """Return the person of a session's cookie; None if it is missing, forged or expired."""
        claims = self._verify("session", cookies[SESSION_COOKIE]) if SESSION_COOKIE in cookies else None
        if claims is None or claims.get("role") not in get_args(AccessRole):
            return None
        return Bearer(str(claims["name"]), claims["role"], "", claims["exp"])

    def _sign(self, purpose: str, claims: dict[str, Any], seconds: int) -> str:
        expires = int(self._clock()) + seconds
        return jwt.encode({"alg": "HS256"}, {**claims, "aud": purpose, "exp": expires}, self._cookie_key)

    def _verify(self, purpose: str, cookie: str) -> dict[str, Any] | None:
        try:
            token = jwt.decode(cookie, self._cookie_key, algorithms=["HS256"])
            self._registry(0, aud=purpose, exp=None).validate(token.claims)
        except _TOKEN_ERRORS:
            return None
        return token.claims

    def _registry(self, leeway: int, **values: str | None) -> jwt.JWTClaimsRegistry:
        """Return a check that each claim in ``values`` is present and, unless its value is None, has this value."""
        wanted = {
            name: cast("Any", {"essential": True} | ({} if value is None else {"value": value}))
            for name, value in values.items()
        }
        return jwt.JWTClaimsRegistry(now=int(self._clock()), leeway=leeway, **wanted)

    async def _fetch_id_token(self, code: str, verifier: str) -> str:
        provider = await self._find_provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        if "client_secret_basic" in provider.token_endpoint_auth_methods_supported:
            login = f"{quote(self._client, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        else:
            form |= {"client_id": self._client, "client_secret": self._secret}
        response = await self._request("POST", provider.token_endpoint, data=form, headers=headers)
        token = response.get("id_token")
        if not isinstance(token, str):
            raise SignOnError("failed", "the provider sent no ID token; add the scope openid to the client")
        return token

    async def _read_id_token(self, text: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token for this client and sign-in."""
        try:
            try:
                token = jwt.decode(text, await self._find_keys(), algorithms=_ALGORITHMS)
            except (InvalidKeyIdError, ValueError):
                token = jwt.decode(text, await self._find_keys(is_outdated=True), algorithms=_ALGORITHMS)
            wanted = {"iss": self._issuer, "aud": self._client, "nonce": nonce, "exp": None, "iat": None}
            self._registry(_LEEWAY_SECONDS, **wanted).validate(token.claims)
        except _TOKEN_ERRORS as error:
            raise SignOnError("failed", f"the ID token is invalid: {type(error).__name__}") from None
        if token.claims.get("azp", self._client) != self._client:
            raise SignOnError("failed", "the ID token is for another party")
        return token.claims

    def _name_of(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self._name_claim)
        if self._name_claim == "email" and claims.get("email_verified", True) not in (True, "true"):
            raise SignOnError("role", "the provider has not verified the address in the claim email")
        try:
            return _names.validate_python(name, strict=True)
        except ValidationError:
            raise SignOnError(
                "role", f"claim {self._name_claim} is missing or no name; set SOTTO_MONITOR_OIDC_NAME_CLAIM"
            ) from None

    def _role_of(self, claims: Mapping[str, Any]) -> AccessRole:
        """Return the highest role that a value of the claim gives."""
        found = claims.get(self._role_claim)
        values = {found} if isinstance(found, str) else set(map(str, found)) if isinstance(found, list) else set()
        for role, wanted in self._roles.items():
            if wanted == "*" or wanted in values:
                return role
        raise SignOnError("role", f"claim {self._role_claim} has no value of SOTTO_MONITOR_OIDC_ROLES")

    async def _find_provider(self) -> _Provider:
        if self._provider is None:
            url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                provider = _Provider.model_validate(await self._request("GET", url))
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    _require_https(name, getattr(provider, name))
            except (ValidationError, SignOnSettingsError):
                raise SignOnError("unavailable", "the provider's configuration is invalid") from None
            if provider.issuer != self._issuer:
                raise SignOnError("unavailable", "the provider's configuration names another issuer")
            self._provider = provider
        return self._provider

    async def _find_keys(self, *, is_outdated: bool = False) -> KeySet:
        """Return the provider's public keys; read them again if they are old, or lack the key of a token."""
        async with self._lock:
            age = self._clock() - self._keys_read_at
            if self._keys is None or age >= (_KEYS_PAUSE_SECONDS if is_outdated else _KEYS_SECONDS):
                response = await self._request("GET", (await self._find_provider()).jwks_uri)
                listed = response.get("keys")
                found = map(_import_public_key, listed if isinstance(listed, list) else [])
                if not (keys := [key for key in found if key is not None]):
                    raise SignOnError("unavailable", "the provider lists no key for signatures")
                self._keys = KeySet([*keys])
                self._keys_read_at = self._clock()
            return self._keys

    async def _request(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """Return the JSON object of the provider's response; raise SignOnError for any other response."""
        limit = ClientTimeout(total=_PROVIDER_SECONDS)
        try:
            async with (
                ClientSession(timeout=limit, trust_env=True) as session,
                session.request(method, url, allow_redirects=False, **options) as response,
            ):
                content = bytearray()
                async for part in response.content.iter_chunked(1 << 16):
                    content += part
                    if len(content) > _MAX_RESPONSE_BYTES:
                        raise SignOnError("unavailable", "the provider's response is too large")
                status = response.status
            found = json.loads(content)
        except (ClientError, OSError, TimeoutError, ValueError, RecursionError) as error:
            raise SignOnError("unavailable", f"the provider's response: {type(error).__name__}") from None
        if status in {400, 401} and method == "POST":
            raise SignOnError("failed", f"the provider refused the code or the client: {status}")
        if status != 200 or not isinstance(found, dict):
            raise SignOnError("unavailable", f"the provider's response: status {status}")
        return found


def _import_public_key(given: Any) -> RSAKey | ECKey | None:
    """Return a key for signatures; None for other keys and for types and curves that joserfc lacks."""
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    try:
        match given.get("kty"):
            case "RSA":
                return RSAKey.import_key(given)
            case "EC":
                return ECKey.import_key(given)
    except (*_TOKEN_ERRORS, KeyError):
        pass
    return None


def _refuse(error: SignOnError) -> web.Response:
    log.warning("sign-in failed", fault=error.fault, detail=str(error))
    return web.Response(status=303, headers={"Location": f"/#sign-in={error.fault}"})


def _set_cookie(response: web.Response, name: str, value: str, seconds: int, same_site: str) -> None:
    response.set_cookie(name, value, max_age=seconds, path="/", secure=True, httponly=True, samesite=same_site)


def _delete_cookie(response: web.Response, name: str) -> None:
    response.del_cookie(name, path="/", secure=True, httponly=True)


def parse_roles(text: str) -> dict[AccessRole, str]:
    """Parse ``operator=GROUP,analyst=GROUP,viewer=*``; the highest role is first.

    Raises:
        SignOnSettingsError: a part is not a role with a value of the claim.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        role, equals, value = (one.strip() for one in part.partition("="))
        if role not in get_args(AccessRole) or not equals or not value or role in given:
            raise SignOnSettingsError(
                "SOTTO_MONITOR_OIDC_ROLES: is not a list of roles; give ROLE=VALUE for viewer, analyst or operator, each "
                "once, separated by commas; * stands for any value"
            )
        given[role] = value
    return {role: given[role] for role in ("operator", "analyst", "viewer") if role in given}


def _require_https(name: str, address: str) -> None:
    """Require https, or a provider on this machine."""
    try:
        url = URL(address)
    except ValueError:
        url = URL()
    if not is_encrypted_or_local(url.scheme, url.host):
        raise SignOnSettingsError(f"{name}: is no https address; give https://HOST")
