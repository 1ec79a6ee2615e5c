"""Environment variables that Sotto reads, and a warning about misspelt ones."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from stream.settings import PREFIX, Settings, variable

KEY_VARIABLE: Final = "SOTTO_NOISE_KEY"
KEY_FILE_VARIABLE: Final = "SOTTO_NOISE_KEY_FILE"
KEY_COMMAND_VARIABLE: Final = "SOTTO_NOISE_KEY_COMMAND"
TOKEN_VARIABLE: Final = "SOTTO_MONITOR_TOKEN"  # noqa: S105  (a name)
KERNEL_VARIABLE: Final = "SOTTO_KERNEL"
"""``off`` disables the compiled kernel."""
KERNEL_OFF: Final = "off"
CACHE_VARIABLE: Final = "SOTTO_CACHE"
"""Folder for the local broker's files."""
BROKER_OPTIONS_VARIABLE: Final = "SOTTO_BROKER_JAVA_OPTIONS"
"""Additional Java options of the local broker."""
COMPOSE: Final = frozenset(
    f"SOTTO_{name}" for name in ("UID", "ALERTS", "DATA", "NAMES", "NOISE_KEY_FILE", "VIEWER_TOKEN_FILE")
)
"""Variables of the Docker Compose file."""
SCREENSHOTS_VARIABLE: Final = "SOTTO_SCREENSHOTS"
"""Folder for screenshots of the page's tests."""

NOISE_KEY: Final = frozenset({KEY_VARIABLE, KEY_FILE_VARIABLE, KEY_COMMAND_VARIABLE})
"""The noise key or its location, for workers and budget service."""
MONITOR_TOKEN: Final = frozenset({TOKEN_VARIABLE, f"{TOKEN_VARIABLE}_FILE"})
"""The user's monitor token or its location, for commands and no service."""
MONITOR_NAMES: Final = frozenset({"SOTTO_MONITOR_NAMES_FILE"})
"""Location of the token digests, for the monitor."""
KAFKA_CREDENTIALS: Final = frozenset(
    f"SOTTO_{name}"
    for name in ("SASL_PASSWORD", "SASL_PASSWORD_FILE", "SASL_TOKEN_FILE", "SASL_TOKEN_COMMAND", "TLS_KEY_FILE")
)
"""Kafka credentials or their locations, for every service."""
SECRETS: Final = NOISE_KEY | MONITOR_TOKEN | MONITOR_NAMES | KAFKA_CREDENTIALS
"""All secrets, which a program that Sotto starts must not inherit."""


def without(names: frozenset[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment (default: this process's) without the variables ``names``."""
    return {name: text for name, text in environment.items() if name not in names}


SETTINGS: Final = frozenset(map(variable, Settings.model_fields))
"""Variables of settings, which are also read in lower case."""
VARIABLES: Final = (
    SETTINGS
    | NOISE_KEY
    | MONITOR_TOKEN
    | COMPOSE
    | {KERNEL_VARIABLE, CACHE_VARIABLE, BROKER_OPTIONS_VARIABLE, SCREENSHOTS_VARIABLE}
)
"""All variables that Sotto reads."""

_MOST: Final = 10
"""Most variables named in a warning."""
_SIMILAR: Final = 0.75
_HOST_OF_SERVICE: Final = "_SERVICE_HOST"
_OF_SERVICE: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT(_\d+_\w+)?")


def warning(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning about ``SOTTO_…`` variables without effect; None if there are none.

    It names the most similar known variable, and no values, which may be secrets. It skips the
    variables that Kubernetes sets for a service whose name begins with ``sotto``.
    """
    parts = []
    services = {name.removesuffix(_HOST_OF_SERVICE) for name in environment if name.endswith(_HOST_OF_SERVICE)}
    unread = sorted(name for name in environment if not _is_read(name) and not _is_of_service(name, services))
    if unread:
        more = f" and {len(unread) - _MOST} more" if len(unread) > _MOST else ""
        parts.append(
            f"nothing reads {', '.join(map(_with_nearest, unread[:_MOST]))}{more}; correct the name or unset it"
        )
    if environment.get(KERNEL_VARIABLE, "").casefold() not in {"", KERNEL_OFF}:
        parts.append(
            f"{KERNEL_VARIABLE} has no effect: it takes '{KERNEL_OFF}' alone; unset it to use the compiled kernel"
        )
    return "; ".join(parts) or None


def _is_read(name: str) -> bool:
    return not name.upper().startswith(PREFIX) or name in VARIABLES or name.upper() in SETTINGS


def _is_of_service(name: str, services: set[str]) -> bool:
    return any(name.startswith(one) and _OF_SERVICE.fullmatch(name[len(one) :]) for one in services)


def _with_nearest(name: str) -> str:
    # Compare names without their common prefix.
    rests = {one.removeprefix(PREFIX): one for one in VARIABLES}
    near = get_close_matches(name.upper().removeprefix(PREFIX), sorted(rests), n=1, cutoff=_SIMILAR)
    return f"{name} (is {rests[near[0]]} meant?)" if near else name


def reduce_gc_frequency() -> None:
    """Collect garbage rarely, and never search the present objects: imported modules stay."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
