"""Sotto: differentially private answers on a Kafka query stream."""

from typing import Final

VERSION: Final = "0.1.0"

SERVER_NAME: Final = "sotto"
"""The ``Server`` header of HTTP responses; it has no version, which could help attackers."""
