"""From JSON to the fields that a source declares, and nothing else of an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from stream.data.events.flaws import MALFORMED, NO_OBJECT, REPEATED, Flaw

Path = tuple[str, ...]
"""The names on the way to a field."""


class Decoder:
    """Reads the fields at some paths; what is not there, or no way leads to, is None.

    ``quick`` is for what is as it should be, a struct an event; ``slow`` says what is wrong, or reads what only looked wrong. Both
    judge each event by itself.
    """

    def __init__(self, paths: Sequence[Path], kinds: Sequence[Any]) -> None:
        """Take the fields' paths, and the types that values of each are expected to have."""
        self._paths = paths
        self._tree = _Branch()
        names: list[str] = []
        for path, kind in zip(paths, kinds, strict=True):
            at, name = self._tree, ""
            for step in path:
                at, place = at.below(step)
                name = f"{name}.{place}" if name else place
            at.kinds.append(kind)
            names.append(name)
        self.quick: Callable[[bytes], Any] | None = None
        if not self._tree.is_mixed:
            self.quick = msgspec.json.Decoder(self._tree.struct("Event")).decode
        self._getters = [_getter(name) for name in names]
        self.written: Sequence[bytes] = [
            msgspec.json.encode(step) for step in dict.fromkeys(step for path in paths for step in path)
        ]
        """Each name on some path as JSON has it, if nothing of it is escaped."""

    def column(self, field: int, events: Sequence[Any]) -> list[Any]:
        """One field's values in events that were read quickly."""
        return list(map(self._getters[field], events))

    def slow(self, value: bytes) -> tuple[Any, ...] | Flaw:
        """The fields of one event, or what is wrong with it; numbers beyond all doubles are infinite."""
        try:
            event = _decode(value)
        except (ValueError, RecursionError):
            return MALFORMED
        if not isinstance(event, dict):
            return NO_OBJECT
        return tuple(_at(event, path) for path in self._paths)

    def repeats(self, value: bytes) -> Flaw | None:
        """What is wrong with an event in which a name on some path stands twice in its object."""
        try:
            event = _pairs.decode(value.decode(errors="surrogateescape"))
        except (ValueError, RecursionError):
            return MALFORMED
        return REPEATED if _repeated(event, self._tree) else None


_decode: Final = msgspec.json.Decoder(float_hook=float).decode


class _Pairs(list[tuple[str, Any]]):
    pass


_pairs: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


class _Branch:
    """The fields below one object."""

    def __init__(self) -> None:
        self.branches: dict[str, _Branch] = {}
        self.kinds: list[Any] = []

    def below(self, step: str) -> tuple[_Branch, str]:
        """What is below a name, and what the struct calls it."""
        branch = self.branches.setdefault(step, _Branch())
        return branch, f"f{list(self.branches).index(step)}"

    @property
    def is_mixed(self) -> bool:
        """Whether something is read both itself and as an object that others stand in."""
        return bool(self.kinds and self.branches) or any(one.is_mixed for one in self.branches.values())

    def struct(self, name: str) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any, Any]] = []
        for place, branch in enumerate(self.branches.values()):
            kind = branch.struct(f"{name}{place}") | None if branch.branches else _common(branch.kinds)
            fields.append((f"f{place}", kind, None))
        renamed = {f"f{place}": step for place, step in enumerate(self.branches)}
        return msgspec.defstruct(name, fields, rename=renamed, frozen=True, gc=False)


def _common(kinds: Sequence[Any]) -> Any:
    return kinds[0] | None if all(kind == kinds[0] for kind in kinds) and kinds[0] is not Any else Any


def _getter(name: str) -> Callable[[Any], Any]:
    if "." not in name:
        return attrgetter(name)
    *way, last = name.split(".")

    def get(event: Any) -> Any:
        for step in way:
            event = getattr(event, step)
            if event is None:
                return None
        return getattr(event, last)

    return get


def _at(event: Mapping[str, Any], path: Path) -> Any:
    found: Any = event
    for step in path:
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _repeated(event: Any, branch: _Branch) -> bool:
    if not isinstance(event, _Pairs):
        return False
    for step, below in branch.branches.items():
        values = [value for name, value in event if name == step]
        if len(values) > 1 or (values and _repeated(values[0], below)):
            return True
    return False
