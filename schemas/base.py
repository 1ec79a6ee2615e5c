"""Base types of the contract, and limits on JSON texts.

Events are immutable; their texts are bounded and their numbers finite. JSON with a repeated field is refused, because
some readers silently take the first of the two values, and others the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from operator import eq
from typing import Annotated, Any, ClassVar, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema

KIND_ERROR = "kind_unknown"
"""The type of pydantic's error about an unknown ``kind``."""

MAX_EVENT_BYTES = 16 * 1024
"""Largest query event in bytes; a larger event is refused without being read."""

MAX_DEFINITION_BYTES = 512 * 1024
"""Largest request in bytes; requests are longer than queries because they declare the domains of tables."""

MAX_RECORD_BYTES = 4 * MAX_DEFINITION_BYTES
"""Largest control or ledger event in bytes; each contains a whole definition."""

MAX_ANSWER_BYTES = 512 * 1024

MAX_MAGNITUDE = 1e15
"""Largest absolute value of a public number; doubles up to it still resolve steps of 1/8."""

_MESSAGE_BY_PATTERN: Final[dict[str, str]] = {}


def text_matching(
    pattern: str, message: str, *, min_length: int | None = None, max_length: int | None = None
) -> StringConstraints:
    """Constrain a text to a pattern, with ``message`` as the error message."""
    _MESSAGE_BY_PATTERN[pattern] = message
    return StringConstraints(min_length=min_length, max_length=max_length, pattern=pattern)


def message_of_pattern(pattern: str) -> str | None:
    """Return the error message of a pattern; None if ``text_matching`` has not declared it."""
    return _MESSAGE_BY_PATTERN.get(pattern)


class OneOf:
    """Marks a union that no field discriminates; its error has the message ``message``."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if schema["type"] != "union":
            raise TypeError("OneOf: the type is not a union; mark a union of several forms")
        return {**schema, "custom_error_type": "form_unknown", "custom_error_message": self._message}


class ByKind:
    """Marks a union that the field ``kind`` discriminates; its error message lists all kinds."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if schema["type"] != "tagged-union":
            raise TypeError(
                "ByKind: the union has no discriminator; give Field(discriminator='kind') before ByKind()"
            )
        kinds = ", ".join(f"'{kind}'" for kind in schema["choices"])
        return {**schema, "custom_error_type": KIND_ERROR, "custom_error_message": f"give one of {kinds}"}


class Event(BaseModel):
    """An immutable event: unknown fields are refused, numbers are finite, types are strict."""

    wire_omits_defaults: ClassVar[bool] = False
    """True if the JSON leaves out every field at its default."""

    wire_omits: ClassVar[frozenset[str]] = frozenset()
    """Fields that the JSON leaves out at their defaults, as earlier versions did; subclasses inherit them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="null",
        hide_input_in_errors=True,
        defer_build=True,  # models are built on first use, because a short command needs few of them
    )

    def __init_subclass__(cls, *, wire_omits: Iterable[str] = (), wire_omits_defaults: bool = False) -> None:
        super().__init_subclass__()
        cls.wire_omits = cls.wire_omits | set(wire_omits)
        cls.wire_omits_defaults = cls.wire_omits_defaults or wire_omits_defaults

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        super().__pydantic_init_subclass__(**arguments)
        for name in cls.wire_omits & cls.model_fields.keys():
            field = cls.model_fields[name]
            field.exclude_if = partial(eq, field.get_default(call_default_factory=True))


Identifier = Annotated[
    str,
    text_matching(
        r"^[A-Za-z0-9][A-Za-z0-9._:/@+\-]*$",
        "a name has only letters from A to Z and a to z, digits and . _ : / @ + -, and begins with a letter or a digit; give one, as ward-7",
        min_length=1,
        max_length=128,
    ),
]
"""Name of a source or stream; it is also a Kafka key, a part of file names and a log field."""

EventId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
"""The client's id of a query or a request, of any form; the answer repeats it."""

Reason = Annotated[str, StringConstraints(max_length=1024)]
"""The reason why something was refused, halted or closed; it never contains private data."""

Number = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
"""A finite number within the contract's range."""

PrivateNumber = float
"""A private number of any size; it is clamped, because a refusal would reveal that it is large."""

Epsilon = Annotated[float, Field(ge=1e-6, le=1000.0)]
"""A privacy-loss parameter ε, from 10⁻⁶ to 1000."""

Delta = Annotated[float, Field(ge=0.0, lt=0.5)]
"""A failure probability δ of the privacy guarantee."""

Probability = Annotated[float, Field(ge=1e-15, le=1.0 - 1e-9)]
"""A probability between 0 and 1 that is not too close to either."""

Count = Annotated[int, Field(ge=0, le=2**62)]
"""A non-negative integer."""

Milliseconds = Annotated[int, Field(ge=0, le=2**62)]
"""Milliseconds since 1970 in UTC, as in Kafka."""

Renewal = Annotated[
    str,
    text_matching(r"^[1-9][0-9]{0,3}[dh]$", "give a whole number of days or hours, at most 9999, as 30d or 12h"),
]
"""Length of a budget's period in days or hours, as in ``30d``."""

Analysts = Annotated[tuple[Identifier, ...], Field(max_length=1000, strict=False)]
"""Names of analysts with a right to open streams."""

Surplus = Annotated[int, Field(ge=-(2**62), le=2**62)]
"""The cost of charged answers beyond ordinary charges; it may be negative.

Its unit is 2⁻²⁰ of an ordinary charge.
"""

Incarnation = Annotated[str, text_matching(r"^[0-9a-f]{32}$", "give 32 hexadecimal digits, letters in lower case")]
"""128 random bits in hexadecimal that distinguish streams opened under the same name."""

_DIGEST: Final = text_matching(r"^[0-9a-f]{64}$", "give 64 hexadecimal digits, letters in lower case")

Fingerprint = Annotated[str, _DIGEST]
"""Keyed digest of a table's rows and schema; it reveals nothing without the key."""

FIRST_VERSION = 1

Version = Annotated[int, Field(ge=FIRST_VERSION, le=2**31)]
"""Version of a source's data: 1 for the registered data, and one more after each refresh."""

Digest = Annotated[str, _DIGEST]

KeyId = Annotated[str, text_matching(r"^[0-9a-f]{16}$", "give 16 hexadecimal digits, letters in lower case")]
"""Public name of a noise key."""


class Amount(Event, wire_omits={"rho"}, wire_omits_defaults=True):
    """A quantity of privacy budget.

    ``rho`` is set under zero-concentrated differential privacy. Then ``delta`` is 0, and ``rho`` and ``epsilon`` both
    add up over streams; the budget bounds one of the two sums. Streams with Gaussian noise have no ``epsilon``. With
    such a stream only the sum of ``rho`` is bounded, and ``epsilon`` and ``delta`` follow from it.
    """

    epsilon: float
    delta: float
    rho: float | None = None

    def minimum_with(self, other: Amount) -> Amount:
        """Return the lesser of what two budgets of one accountant have left."""
        epsilon = min(self.epsilon, other.epsilon)
        if self.rho is None or other.rho is None:
            return Amount(epsilon=epsilon, delta=min(self.delta, other.delta))
        less = self if self.rho <= other.rho else other
        # With Gaussian noise, ε is what ρ implies at δ, and without it a sum: only ε of one kind are comparable.
        return less if self.delta != other.delta else less.model_copy(update={"epsilon": epsilon})


class Position(Event):
    """Topic, partition and offset of an event."""

    topic: str
    partition: int
    offset: int


def require_delta(budget: Any) -> Any:
    """Refuse a budget with the accountant ``zcdp`` and without a δ; a pydantic validator."""
    if budget.accountant == "zcdp" and budget.delta <= 0.0:
        raise ValueError("delta must be above 0 with accountant 'zcdp'; give one, or use accountant 'pure'")
    return budget


REPEATED_FIELD: Final = "event: a field is given twice; give each field once"

_encode = msgspec.json.Encoder().encode


class _RepeatedError(Exception):
    pass


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _RepeatedError


_decoder = json.JSONDecoder(object_pairs_hook=_require_unique, parse_int=str, parse_float=str)


def repeats_a_field(data: bytes | str) -> bool:
    """Return whether an object in this valid JSON text has a name twice."""
    text, raw = (data, data.encode()) if isinstance(data, str) else (data.decode(), data)
    # A text that msgspec cannot decode and encode, as with very long numbers, is checked name by name below.
    with suppress(msgspec.MsgspecError, OverflowError, RecursionError):
        if not may_repeat_a_field(raw, msgspec.json.decode(raw)):
            return False
    try:
        _decoder.decode(text)
    except _RepeatedError:
        return True
    return False


def may_repeat_a_field(data: bytes, event: Any) -> bool:
    """Test quickly for repeated names; False means that no name is repeated.

    ``event`` is the decoded text: plain objects, or a struct that leaves out defaults. When it is encoded
    again, the result has each name once, and no name that ``data`` lacks. A name takes two unescaped
    quotation marks, so ``data`` has more marks than the result if it repeats a name. Escaped marks are
    subtracted only for the result, so True may be returned for a text with escaped marks and no repeat.
    """
    again = _encode(event)
    return data.count(b'"') != again.count(b'"') - again.count(b'\\"')


MAX_NAMES: Final = 9216
"""Maximum number of fields in a text, and of objects and lists together.

A table of 1,024 timestamps with all fields and their columns has 8,192 fields and those of the table.
"""

MAX_NESTING: Final = 64

MAX_FAULTS: Final = 1000
"""Maximum number of faults that are described one by one."""

# The pattern is possessive, and its closing quote optional, so that an unterminated string is scanned only once.
STRING: Final = rb'"(?:[^"\\]|\\.)*+"?'
"""Pattern of a JSON string, to be compiled with re.DOTALL."""

_string: Final = re.compile(STRING, re.DOTALL)
_BRACKETS: Final = b"{}[]"
_NO_BRACKETS: Final = bytes(letter for letter in range(256) if letter not in _BRACKETS)


def shape_fault(data: bytes | str, *, names: int = MAX_NAMES, nesting: int = MAX_NESTING) -> str | None:
    """Describe how a JSON text, valid or not, exceeds the limits; None if it does not."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    opened = raw.count(b"{") + raw.count(b"[")
    if opened <= nesting and raw.count(b":") <= names:
        return None
    structure = _string.sub(b"", raw)
    if (found := structure.count(b":")) > names:
        return f"{found} fields; give at most {names}"
    if (found := structure.count(b"{") + structure.count(b"[")) > names:
        return f"{found} objects and lists; give at most {names}"
    if _deepest_nesting(structure) > nesting:
        return f"nested deeper than {nesting}; give one JSON object with the contract's fields"
    return None


def nesting_of(data: bytes) -> int:
    """Return the deepest nesting of objects and lists in a JSON text, valid or not."""
    return _deepest_nesting(_string.sub(b"", data))


def _deepest_nesting(structure: bytes) -> int:
    deepest = depth = 0
    for bracket in structure.translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in b"{[" else -1
        deepest = max(deepest, depth)
    return deepest


def cut_at_word(text: str, length: int) -> str:
    """Return at most ``length`` characters of a text; a cut text ends with a whole word and an ellipsis."""
    if len(text) <= length:
        return text
    cut = text[: length - 2]
    return f"{cut.rpartition(' ')[0] or cut} …"


Word = Annotated[str, text_matching(r"^[a-z_]{1,64}$", "give 1 to 64 small letters and _")]
"""A word of a list to which later versions may add words."""
