"""Functions of SciPy that planning needs, imported when they are first called: a service that plans nothing starts without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def _found(module: str, name: str) -> Callable[..., Any]:
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def _later(module: str, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return _found(module, name)(*arguments, **options)

    return call


minimize = _later("scipy.optimize", "minimize")
minimize_scalar = _later("scipy.optimize", "minimize_scalar")
betaincc = _later("scipy.special", "betaincc")
betainccinv = _later("scipy.special", "betainccinv")
betaincinv = _later("scipy.special", "betaincinv")
gammaln = _later("scipy.special", "gammaln")
logsumexp = _later("scipy.special", "logsumexp")
ndtri = _later("scipy.special", "ndtri")
