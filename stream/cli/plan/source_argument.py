"""Reads the option ``--source``: a definition as JSON, or the name of a registered source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from schemas import Source
from stream.cli.output import read_as

_sources: TypeAdapter[Source] = TypeAdapter(Source)
_NAME_PATTERN: Final = re.compile("[A-Za-z0-9_-]*[A-Za-z0-9_]", re.ASCII)
"""Names that cannot be taken for a file with a suffix, inline JSON, or ``-``."""


def read_source(argument: str) -> Source:
    """Return the source that a document defines, or the registered one of that name."""
    if _NAME_PATTERN.fullmatch(argument) and not Path(argument).exists():
        from stream.cli.plan.public_data import RegisteredSources  # noqa: PLC0415  (reading a document needs no packages)

        return RegisteredSources().find_source(argument)
    return read_as(_sources, argument)
