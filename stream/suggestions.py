"""Names that a person may have meant by one that is not there."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

MAX_COMPARED: Final = 1000
"""Most names that are compared letter by letter; among more, only those in letters of another case are found."""


def in_other_case(name: str, names: Collection[str]) -> str | None:
    """The one of ``names`` that differs from ``name`` in the case of its letters alone, if there is exactly one."""
    folded = name.casefold()
    alike = [one for one in names if one.casefold() == folded]
    return alike[0] if len(alike) == 1 else None


def closest(name: str, names: Collection[str], *, cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that is closest to ``name``, if any is close; the same one whatever their order."""
    if (alike := in_other_case(name, names)) is not None:
        return alike
    if len(names) > MAX_COMPARED:
        return None
    of_folded = {one.casefold(): one for one in sorted(names, reverse=True)}
    found = get_close_matches(name.casefold(), sorted(of_folded), n=1, cutoff=cutoff)
    return of_folded[found[0]] if found else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """The end of a message about an unknown name: ``; did you mean 'patients'?``, or nothing if no name is close."""
    found = closest(str(name), names)
    return "" if found is None else f"; did you mean '{found}'?"
