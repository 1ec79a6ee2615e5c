"""Which field of a mechanism says how many charged answers a stream pays for."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

FIELDS: Final = ("cutoff", "answers", "updates")
"""The names that it has: ⊤s or measurements, noisy answers, updates of a hypothesis."""
ANSWERED: Final = frozenset({"cutoff", "answers"})
"""Those that count single answers."""


def cutoff_field(kind: str, model: type[BaseModel], *, standing: bool) -> str | None:
    """The field of a kind of mechanism and its model; None if the mechanism is charged once.

    A histogram over a table is charged once, whatever it is asked; a ``standing`` one is charged for each window.
    """
    if kind == "histogram" and not standing:
        return None
    return next((name for name in FIELDS if name in model.model_fields), None)
