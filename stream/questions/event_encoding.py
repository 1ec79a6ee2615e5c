"""Encodes events as JSON, including numpy scalars and datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from numbers import Integral, Real
from typing import Any, Final

import msgspec

from stream.errors import Invalid

_DEEPEST: Final = 64
_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode an event as JSON; numpy's datetimes become ISO 8601 in UTC.

    Raises:
        Invalid: a field has no JSON form; the message names it.
    """
    if not isinstance(event, Mapping):
        raise Invalid(f"event: is of type {type(event).__name__}; give a list of events, each a mapping or bytes")
    try:
        return _encode(event)
    except _UNWRITABLE:
        raise Invalid(_unwritable(event)) from None


def _json_form(value: Any) -> Any:
    """Convert a value that msgspec does not know, without importing numpy or pandas."""
    match value:
        case Mapping():
            return dict(value)
        case str():
            return str.__str__(value)
        case datetime():
            return value.isoformat() if value == value else None  # noqa: PLR0124  (pandas' NaT is a datetime)
        case Integral():
            return int(value)
    if _numpy_kind(value) in "fMbS":
        return _numpy_form(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(type(value).__name__)


def _numpy_kind(value: Any) -> str:
    return str(value.dtype.kind) if getattr(value, "shape", None) == () and hasattr(value, "dtype") else "-"


def _numpy_form(value: Any) -> Any:
    """Convert a numpy scalar: a float by its shortest decimal, a datetime as UTC."""
    match _numpy_kind(value):
        case "f":
            return float(str(value))
        case "M":
            text = str(value.astype("datetime64[ms]"))
            return None if text == "NaT" else f"{text}Z"
        case _:
            return value.item()


_encode = msgspec.json.Encoder(enc_hook=_json_form).encode


def _unwritable(event: Mapping[str, Any]) -> str:
    value: Any = event
    way: list[str] = []
    while isinstance(value, Mapping) and len(way) < _DEEPEST and (step := _first_unwritable(value)) is not None:
        way.append(str(step))
        value = value[step]
    kind = type(value).__name__
    return f"{'.'.join(way) or 'event'}: {kind} has no JSON form; give text, numbers, moments, or objects of them"


def _first_unwritable(fields: Mapping[str, Any]) -> str | None:
    for name, value in fields.items():
        try:
            _encode(value)
        except _UNWRITABLE:
            return name
    return None
