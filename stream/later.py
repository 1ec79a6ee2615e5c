"""Packages that are imported when something of them is first used: services start without, and may never need them.

A worker whose streams ask no table gives polars no time and no memory; who plans nothing waits for nothing of SciPy. A client without
NumPy checks a ledger and makes a key.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from scipy import optimize, special
else:

    class _Later:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module(self._module), name)
            setattr(self, name, found)
            return found

    np, pl, optimize, special = map(_Later, ("numpy", "polars", "scipy.optimize", "scipy.special"))

__all__ = ["np", "optimize", "pl", "special"]
