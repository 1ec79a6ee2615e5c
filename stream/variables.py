"""Which variables of the environment something here reads: another that begins like them is misspelt, most likely."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from stream.environment import (
    BROKER_OPTIONS_VARIABLE,
    CACHE_VARIABLE,
    COMPOSE,
    KERNEL_OFF,
    KERNEL_VARIABLE,
    MONITOR_TOKEN,
    NOISE_KEY,
    SCREENSHOTS_VARIABLE,
)
from stream.settings import PREFIX, Settings, variable

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
