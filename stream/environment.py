"""Which variables of the environment something here reads: another that begins like them is misspelt, most likely."""

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
"""``off`` has a process do without the compiled kernel."""
KERNEL_OFF: Final = "off"
CACHE_VARIABLE: Final = "SOTTO_CACHE"
"""The folder for Kafka's files."""
BROKER_OPTIONS_VARIABLE: Final = "SOTTO_BROKER_JAVA_OPTIONS"
"""Further options for Java of the local broker."""
COMPOSE: Final = frozenset(
    f"SOTTO_{name}" for name in ("UID", "ALERTS", "DATA", "NAMES", "NOISE_KEY_FILE", "VIEWER_TOKEN_FILE")
)
"""What the compose file takes from the shell."""
SCREENSHOTS_VARIABLE: Final = "SOTTO_SCREENSHOTS"
"""Where tests of the page put its pictures."""

NOISE_KEY: Final = frozenset({KEY_VARIABLE, KEY_FILE_VARIABLE, KEY_COMMAND_VARIABLE})
"""The noise key, or where it is to be had: for workers and budget service."""
MONITOR_TOKEN: Final = frozenset({TOKEN_VARIABLE, f"{TOKEN_VARIABLE}_FILE"})
"""One's own token for the monitor, or where it is to be had: for commands that ask it, and for no service."""
MONITOR_NAMES: Final = frozenset({"SOTTO_MONITOR_NAMES_FILE"})
"""Where the digests of all tokens are to be had: for the monitor."""
KAFKA_CREDENTIALS: Final = frozenset(
    f"SOTTO_{name}"
    for name in ("SASL_PASSWORD", "SASL_PASSWORD_FILE", "SASL_TOKEN_FILE", "SASL_TOKEN_COMMAND", "TLS_KEY_FILE")
)
"""What Kafka is shown, or where it is to be had: for every service."""
SECRETS: Final = NOISE_KEY | MONITOR_TOKEN | MONITOR_NAMES | KAFKA_CREDENTIALS
"""All of them: for no program that is not ours."""


def without(names: frozenset[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment, this process's if none is given, without these variables."""
    return {name: text for name, text in environment.items() if name not in names}


SETTINGS: Final = frozenset(map(variable, Settings.model_fields))
"""Those of settings, which are read in small letters, too."""
VARIABLES: Final = (
    SETTINGS
    | NOISE_KEY
    | MONITOR_TOKEN
    | COMPOSE
    | {KERNEL_VARIABLE, CACHE_VARIABLE, BROKER_OPTIONS_VARIABLE, SCREENSHOTS_VARIABLE}
)
"""All of them."""

_MOST: Final = 10
"""So many are named."""
_SIMILAR: Final = 0.75
_HOST_OF_SERVICE: Final = "_SERVICE_HOST"
_OF_SERVICE: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT(_\d+_\w+)?")


def warning(environment: Mapping[str, str] = os.environ) -> str | None:
    """One line about variables that have no effect, each with the nearest that has one; None if there are none.

    No value is quoted: it may be a secret. What Kubernetes sets for a service whose name begins as ours do is passed over.
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
    # What all of them begin with says nothing.
    rests = {one.removeprefix(PREFIX): one for one in VARIABLES}
    near = get_close_matches(name.upper().removeprefix(PREFIX), sorted(rests), n=1, cutoff=_SIMILAR)
    return f"{name} (is {rests[near[0]]} meant?)" if near else name


def reduce_gc_frequency() -> None:
    """Look for garbage rarely, and never among what is there already: all that is imported stays."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
