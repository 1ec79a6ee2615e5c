"""The version, and the name of HTTP servers."""

from typing import Final

VERSION: Final = "0.1.0"

SERVER_NAME: Final = "sotto"
"""The ``Server`` header of HTTP responses; it has no version, which could help attackers."""
