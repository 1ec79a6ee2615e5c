"""Variables that are no settings, and what a child process is told of this one's: nothing secret that it has no use for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

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
