"""Proposes attributes of a table from the names and types of its columns, and from its public description.

The description is the file ``TABLE.schema.json`` beside the table, a Table Schema (Frictionless Data):
``fields`` with ``name``, ``type``, ``constraints``, ``unit`` and ``description``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from schemas import Address, Domain
from schemas.wire import describe
from stream.tables.readers.csv_files import SEPARATORS
from stream.tables.readers.table_files import Root, is_within
from stream.tables.table_errors import UnreadableError

DESCRIPTION_SUFFIX: Final = ".schema.json"
READ_PARTS: Final = (
    "Sotto reads only the names and types of the first 1,024 columns (the first line of a CSV file, within its first 64 KiB; the schema "
    "of a Parquet file, a Delta table or a database) and the file TABLE.schema.json beside the table, if there is one. The first "
    "line of a CSV file is shown, because it has the names: in a file without names this shows a row. No other cell is shown."
)
"""The text that lists everything on which a proposal depends; the page and ``docs/tables.md`` say the same."""

_UNTYPED_TEXT: Final = (
    "All columns are text, because a CSV file has no types: choose the kind of each attribute first (integers, decimal, "
    "date …)."
)

_MAX_DESCRIPTION_BYTES: Final = 256 * 1024
MAX_COLUMNS: Final = 1024
_MAX_VALUES: Final = 1000
_domain: TypeAdapter[Domain] = TypeAdapter(Domain)


class ColumnType(NamedTuple):
    """A column's name and type.

    ``kind`` is polars' name of the type, and ``scale`` the number of digits after the point of a decimal.
    """

    name: str
    kind: str
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class ProposedAttribute:
    """A proposed attribute, whose ``domain`` still lacks the fields ``missing``.

    ``unit`` and ``description`` come from the table's public description. ``reason`` says why the column cannot be an
    attribute, if ``domain`` is None, or else why the limits of the description are not used.
    """

    name: str
    domain: Mapping[str, Any] | None
    missing: tuple[str, ...] = ()
    unit: str | None = None
    description: str | None = None
    reason: str | None = None


class _Described(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Constraints(_Described):
    minimum: int | float | str | None = None
    maximum: int | float | str | None = None
    enum: Annotated[list[str | int | float | bool], Field(max_length=_MAX_VALUES)] | None = None


class _DescribedField(_Described):
    name: str
    type: Literal["string", "integer", "number", "boolean", "date", "datetime", "any"] = "any"
    constraints: _Constraints = _Constraints()
    unit: Annotated[str, Field(max_length=64)] | None = None
    description: Annotated[str, Field(max_length=256)] | None = None


class TableDescription(_Described):
    """The parts of a table's public description that proposals use."""

    fields: Annotated[list[_DescribedField], Field(max_length=MAX_COLUMNS)] = []


def read_description(path: str, roots: tuple[Root, ...] | None = None) -> TableDescription | None:
    """Read the description beside a local table; None if there is none below the ``roots`` (None: anywhere).

    UnreadableError if it is too large or is no Table Schema.
    """
    if Address.parse_table(path) is not None:
        return None
    file = Path(path.rstrip("/") + DESCRIPTION_SUFFIX)
    try:
        if not file.is_file() or (roots is not None and not is_within(file, roots)):
            return None
        with file.open("rb") as stream:
            content = stream.read(_MAX_DESCRIPTION_BYTES + 1)
    except (OSError, RuntimeError, ValueError):
        return None
    if len(content) > _MAX_DESCRIPTION_BYTES:
        raise UnreadableError(f"its description has more than {_MAX_DESCRIPTION_BYTES} bytes", file=file.name)
    try:
        return TableDescription.model_validate_json(content)
    except ValidationError:
        raise UnreadableError(
            "its description is no Table Schema; give 'fields', each with a 'name'", file=file.name
        ) from None


def remark_on_types(columns: Sequence[ColumnType], proposed: Sequence[ProposedAttribute]) -> str | None:
    """Return a remark if the separator is probably not a comma, or if no column has a type; else None."""
    if (
        len(columns) == 1
        and (sign := next((one for one in SEPARATORS if one in columns[0].name), None)) is not None
    ):
        return f"There is one column, whose name has {SEPARATORS[sign]}: services read commas only; write the file with commas."
    is_untyped = all(column.kind == "String" for column in columns)
    return _UNTYPED_TEXT if is_untyped and any("values" in one.missing for one in proposed) else None


KINDS: Final = {
    "integers": "integer",
    "decimal": "decimal",
    "bins": "number",
    "date": "date",
    "timestamp": "datetime",
    "categories": "string",
    "text": "text",
}
"""The kinds that an owner can choose for a column, and the type of a column that has this kind."""


def propose_attributes(
    columns: Sequence[ColumnType],
    description: TableDescription | None = None,
    chosen_kinds: Mapping[str, str] | None = None,
) -> list[ProposedAttribute]:
    """Propose an attribute for each column, in order; ``chosen_kinds`` has kinds that the owner chose.

    UnreadableError if the names look like the values of a row, which may be private; a row of words is not recognized.
    """
    if not columns or all(column.kind == "String" for column in columns):
        _require_names([column.name for column in columns])
    described = {one.name: one for one in (description.fields if description else ())}
    types = {name: KINDS[kind] for name, kind in (chosen_kinds or {}).items()}
    return [
        _propose_attribute(column, described.get(column.name), types.get(column.name))
        for column in columns[:MAX_COLUMNS]
    ]


_VALUE_PATTERN: Final = re.compile(r"[-+]?[\d.,]*\d[\d.,eE+%-]*|\d{4}-\d\d.*|\d\d?[./]\d\d?[./]\d.*|.*@.*")
_JUDGED_CHARACTERS: Final = 256
"""Characters of a name that are compared: the time is quadratic, and ``re`` blocks other threads meanwhile."""


def _require_names(names: Sequence[str]) -> None:
    """Refuse the first line of a CSV file if it seems to be a row; the message does not quote the line."""
    starts = [name.strip()[:_JUDGED_CHARACTERS] for name in names]
    if not starts or any(not start or _VALUE_PATTERN.fullmatch(start) for start in starts):
        raise UnreadableError(
            "its first line looks like a row: a name is empty or like a value; begin the file with a line of names, none empty"
        )


_DOMAIN_OF_KIND: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "integer": ({"kind": "integers"}, ("minimum", "maximum")),
    "decimal": ({"kind": "decimal"}, ("minimum", "maximum", "step")),
    "number": ({"kind": "bins"}, ("edges",)),
    "boolean": ({"kind": "categories", "values": ["false", "true"]}, ()),
    "date": ({"kind": "date", "granularity": "day"}, ("minimum", "maximum")),
    "datetime": ({"kind": "timestamp", "granularity": "day"}, ("minimum", "maximum")),
    "string": ({"kind": "categories"}, ("values",)),
    "text": ({"kind": "text"}, ()),
}
"""For each type: the proposed domain, and the names of the fields that only the table's owner knows."""

_TYPE_OF_COLUMN: Final = {
    **dict.fromkeys(
        ("Int8", "Int16", "Int32", "Int64", "Int128", "UInt8", "UInt16", "UInt32", "UInt64"), "integer"
    ),
    **dict.fromkeys(("Float32", "Float64"), "number"),
    **dict.fromkeys(("String", "Categorical", "Enum"), "string"),
    "Decimal": "decimal",
    "Boolean": "boolean",
    "Date": "date",
    "Datetime": "datetime",
}


def _propose_attribute(
    column: ColumnType, described: _DescribedField | None, chosen: str | None
) -> ProposedAttribute:
    field_description = described or _DescribedField(name=column.name)
    kind = chosen or _TYPE_OF_COLUMN.get(column.kind)
    if kind is None:
        return ProposedAttribute(column.name, None, reason=f"type {column.kind} can be no attribute")
    if chosen is None and kind == "string" and field_description.type != "any":
        kind = field_description.type  # all cells of a CSV file are text, so the description decides
    domain, missing = _DOMAIN_OF_KIND[kind]
    domain = dict(domain)
    if kind == "text":
        return ProposedAttribute(column.name, domain, (), field_description.unit, field_description.description)
    if kind == "decimal" and column.scale is not None:
        domain["step"] = 10.0**-column.scale
    try:
        fields = _described_fields(kind, field_description.constraints)
        filled = fields if "values" in fields else domain | fields
        left = () if "values" in fields else tuple(name for name in missing if name not in filled)
        if not left:
            _domain.validate_python(filled)
    except ValueError as error:
        fault = describe(error) if isinstance(error, ValidationError) else str(error)
        reason = f"the limits of its description are not used: {fault}"
        return ProposedAttribute(
            column.name, domain, missing, field_description.unit, field_description.description, reason
        )
    return ProposedAttribute(column.name, filled, left, field_description.unit, field_description.description)


def _described_fields(kind: str, limits: _Constraints) -> dict[str, Any]:
    """Return the fields of a domain by the description's limits; ValueError if these are invalid."""
    if kind != "boolean" and limits.enum:
        return {"kind": "categories", "values": [_format_category(value, kind) for value in limits.enum]}
    if kind in {"boolean", "string"}:
        return {}
    convert: Callable[[str], Any] = {"integer": _as_whole, "date": _as_day, "datetime": _as_day}.get(
        kind, _as_number
    )
    given = {"minimum": limits.minimum, "maximum": limits.maximum}
    found = {name: convert(str(value)) for name, value in given.items() if value is not None}
    if len(found) == 2 and found["minimum"] > found["maximum"]:
        raise ValueError("minimum must not be above maximum")
    if kind != "number":
        return {name: value.isoformat() if isinstance(value, date) else value for name, value in found.items()}
    return {"edges": [*found.values()]} if len(found) == 2 else {}


def _format_category(value: str | float | bool, kind: str) -> str:
    """Return an enumerated value as cells have it; whole numbers have no fraction."""
    if isinstance(value, bool):
        return str(value).lower()
    is_whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value)


def _as_number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"'{text[:40]}' is no finite number")
    return found


def _as_whole(text: str) -> int:
    found = _as_number(text)
    if not found.is_integer():
        raise ValueError(f"{found:g} is no whole number")
    return int(found)


def _as_day(text: str) -> date:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise ValueError(f"'{text[:40]}' is no date; write YYYY-MM-DD") from None
