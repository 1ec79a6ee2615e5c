"""The budget service: processes requests and charges, writes ledger and control events.

Order of reading: ``budget_processor``, ``request_handler``, ``openings``, ``trail_writer``.
Commands that must not import NumPy use some of these modules, so the processor, which imports
NumPy, is imported lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.budget.budget_processor import BudgetProcessor

__all__ = ["BudgetProcessor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stream.budget' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module("stream.budget.budget_processor"), name)
    return value
