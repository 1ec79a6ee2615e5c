"""The worker: answers the queries of its partitions.

Order of reading: ``worker_processor``, ``hosted_streams``, ``admission``, ``families``,
``answer_publishing``. Clients without NumPy use some modules, so the processor is imported lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.worker.worker_processor import QueryProcessor

__all__ = ["QueryProcessor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stream.worker' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module("stream.worker.worker_processor"), name)
    return value
