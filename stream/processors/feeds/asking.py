"""What a standing stream asks of one window: the query events, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from schemas.sources import Domain
from schemas.windows import written_moment
from stream.labels import cells_of
from stream.processors.feeds.told import Told

_encode = msgspec.json.Encoder().encode

_Domains = tuple[tuple[str, Domain], ...]

_WHOLE = {"histogram"}
"""The mechanisms that are asked for all groups at once."""


def groups_in(told: Told) -> int:
    """How many groups a stream has: one where it names none."""
    count = 1
    for name in told.standing.by:
        count *= told.source.attributes[name].size
    return count


def questions(told: Told, start: int, numbers: Sequence[Any]) -> Iterator[bytes]:
    """The questions of the window that begins at ``start``: one a group in row-major order, or one for all of them.

    ``numbers`` has what is counted in each group: a number, or the list of those that make it up.
    """
    begun = written_moment(start)
    end = written_moment(start + told.standing.window.size_ms)
    stream = _encode(told.spec.stream)
    window = b',"window":{"start":"%s","end":"%s"}' % (begun.encode(), end.encode())
    if told.spec.mechanism.kind in _WHOLE:
        yield b'{"id":"%s","stream":%s,"values":%s%s}' % (begun.encode(), stream, _encode(numbers), window)
        return
    beginning = b'{"id":"%s/' % begun.encode()
    field = b"values" if isinstance(numbers[0], list) else b"value"
    middle = b'","stream":%s,"%s":' % (stream, field)
    attributes = told.source.attributes
    endings = _endings(tuple((name, attributes[name]) for name in told.standing.by))
    for place, (number, ending) in enumerate(zip(numbers, endings, strict=True)):
        yield b"%s%d%s%s%s%s" % (beginning, place, middle, _encode(number), window, ending)


@lru_cache(maxsize=64)
def _endings(domains: _Domains) -> tuple[bytes, ...]:
    """How the question of each group ends."""
    if not domains:
        return (b"}",)
    return tuple(
        b',"group":%s}' % _encode(cell) for cell in cells_of(dict(domains), [name for name, _ in domains])
    )
