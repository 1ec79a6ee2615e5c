"""Copies of aiokafka's modules for Sotto's clients.

Sotto replaces parts of aiokafka. The replacements are made in these copies, so that a program
that imports ``sotto`` keeps its own consumers and producers unchanged.
"""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec
from typing import Any

__all__ = ["admin", "client", "consumer", "fetcher", "producer"]


def _copy_module(name: str) -> Any:
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


client = _copy_module("aiokafka.client")
fetcher = _copy_module("aiokafka.consumer.fetcher")
consumer = _copy_module("aiokafka.consumer.consumer")
producer = _copy_module("aiokafka.producer.producer")
admin = _copy_module("aiokafka.admin.client")
