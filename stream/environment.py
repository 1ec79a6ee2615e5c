"""The environment variables that Sotto reads, and a warning about misspelt variables."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from stream.settings import PREFIX, Settings, variable_of

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
COMPOSE_VARIABLES: Final = frozenset(
    f"SOTTO_{name}" for name in ("UID", "ALERTS", "DATA", "NAMES", "NOISE_KEY_FILE", "VIEWER_TOKEN_FILE")
)
"""Variables of the Docker Compose file."""
SCREENSHOTS_VARIABLE: Final = "SOTTO_SCREENSHOTS"
"""Folder for screenshots of the page's tests."""

NOISE_KEY_VARIABLES: Final = frozenset({KEY_VARIABLE, KEY_FILE_VARIABLE, KEY_COMMAND_VARIABLE})
"""The noise key or its location, for workers and budget service."""
MONITOR_TOKEN_VARIABLES: Final = frozenset({TOKEN_VARIABLE, f"{TOKEN_VARIABLE}_FILE"})
"""The user's monitor token or its location; only for commands."""
MONITOR_NAMES_VARIABLES: Final = frozenset({"SOTTO_MONITOR_NAMES_FILE"})
"""Location of the token digests, for the monitor."""
KAFKA_CREDENTIAL_VARIABLES: Final = frozenset(
    f"SOTTO_{name}"
    for name in ("SASL_PASSWORD", "SASL_PASSWORD_FILE", "SASL_TOKEN_FILE", "SASL_TOKEN_COMMAND", "TLS_KEY_FILE")
)
"""Kafka credentials or their locations, for every service."""
SECRET_VARIABLES: Final = (
    NOISE_KEY_VARIABLES | MONITOR_TOKEN_VARIABLES | MONITOR_NAMES_VARIABLES | KAFKA_CREDENTIAL_VARIABLES
)
"""All secrets, which a program that Sotto starts must not inherit."""


def environment_without(names: frozenset[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment, by default of this process, without the variables ``names``."""
    return {name: text for name, text in environment.items() if name not in names}


SETTING_VARIABLES: Final = frozenset(map(variable_of, Settings.model_fields))
"""The variables of settings; lower-case spellings are read too."""
ALL_VARIABLES: Final = (
    SETTING_VARIABLES
    | NOISE_KEY_VARIABLES
    | MONITOR_TOKEN_VARIABLES
    | COMPOSE_VARIABLES
    | {KERNEL_VARIABLE, CACHE_VARIABLE, BROKER_OPTIONS_VARIABLE, SCREENSHOTS_VARIABLE}
)
"""All variables that Sotto reads."""

_MAX_NAMED: Final = 10
"""Most variables named in a warning."""
_MIN_SIMILARITY: Final = 0.75
_SERVICE_HOST_SUFFIX: Final = "_SERVICE_HOST"
_SERVICE_VARIABLE_PATTERN: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)|_PORT(_\d+_\w+)?")


def unread_variables_warning(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning about ``SOTTO_…`` variables without effect; None if there are none.

    It names the most similar known variable, and no values, which may be secrets. It skips the
    variables that Kubernetes sets for a service whose name begins with ``sotto``.
    """
    parts = []
    services = {
        name.removesuffix(_SERVICE_HOST_SUFFIX) for name in environment if name.endswith(_SERVICE_HOST_SUFFIX)
    }
    unread = sorted(
        name for name in environment if not _is_read(name) and not _is_set_by_kubernetes(name, services)
    )
    if unread:
        more = f" and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
        parts.append(
            f"nothing reads {', '.join(map(_name_with_suggestion, unread[:_MAX_NAMED]))}{more}; correct the name or unset it"
        )
    if environment.get(KERNEL_VARIABLE, "").casefold() not in {"", KERNEL_OFF}:
        parts.append(
            f"{KERNEL_VARIABLE} has no effect: its only value is '{KERNEL_OFF}'; unset it to use the compiled kernel"
        )
    return "; ".join(parts) or None


def _is_read(name: str) -> bool:
    return not name.upper().startswith(PREFIX) or name in ALL_VARIABLES or name.upper() in SETTING_VARIABLES


def _is_set_by_kubernetes(name: str, services: set[str]) -> bool:
    return any(name.startswith(one) and _SERVICE_VARIABLE_PATTERN.fullmatch(name[len(one) :]) for one in services)


def _name_with_suggestion(name: str) -> str:
    # Compare names without their common prefix.
    name_by_suffix = {one.removeprefix(PREFIX): one for one in ALL_VARIABLES}
    near = get_close_matches(
        name.upper().removeprefix(PREFIX), sorted(name_by_suffix), n=1, cutoff=_MIN_SIMILARITY
    )
    return f"{name} (is {name_by_suffix[near[0]]} meant?)" if near else name


def reduce_gc_frequency() -> None:
    """Collect garbage rarely, and never among the present objects (imported modules)."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
