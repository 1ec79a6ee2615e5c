"""polars, which is imported when something of it is first used: to import it takes a sixth of what a service takes to start.

A worker whose streams ask no table never waits for it, nor gives it memory; one whose tables are read by a process of their
own gets codes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
else:

    class _Later:
        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module("polars"), name)
            setattr(self, name, found)
            return found

    pl = _Later()

__all__ = ["pl"]
