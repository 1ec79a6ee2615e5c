"""The family of unknown_groups: releases texts that enough rows or people have.

The texts are released with noisy counts, unless the mechanism's ``counts`` is False. On a live topic, the
question about a window has the counts of the window's texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas import MAX_CATEGORIES, TOO_MANY_TEXTS, TableSource, UnknownGroups, UnknownGroupsCalibration
from schemas.queries import Group
from stream.formatting import values_of
from stream.privacy.mechanisms.private_values import window_text_size
from stream.privacy.mechanisms.releases import (
    ReleasedGroup,
    count_fitting_groups,
    json_size,
    release_groups,
    release_keys,
)
from stream.privacy.noise.keyed_noise import DrawRole, cell_noise, event_subkey, name_words
from stream.privacy.planning.unknown_groups_plans import (
    count_law,
    group_interval,
    groups_reach,
    is_too_large,
    rule_of,
    size_law,
)
from stream.processing.dead_letters import malformed_rejection
from stream.tables.table_errors import TableDataError, quote_names
from stream.tables.texts import TextGroups, split_name
from stream.worker.families.context import AdmittedQuestion
from stream.worker.families.family import PaidFamily, Reply, read_text_counts, require_form


@dataclass(frozen=True, slots=True)
class _GroupNames:
    """Converts the name of a released group to its values: a text, and values of ``declared`` attributes."""

    text: str
    order: tuple[str, ...]
    declared: Mapping[str, Sequence[str | int | float]]

    @property
    def cells(self) -> int:
        """The number of groups of each text."""
        return math.prod(map(len, self.declared.values()))

    def values(self, name: bytes) -> Group:
        """Return the values of a group, in the order in which the question names the attributes."""
        text, cell = split_name(name)
        found: Group = {self.text: text.decode()}
        for attribute, values in reversed(tuple(self.declared.items())):
            cell, code = divmod(cell, len(values))
            found[attribute] = values[code]
        return {attribute: found[attribute] for attribute in self.order}

    def json_size(self, name: bytes) -> int:
        """Return the size of a group's values as JSON, in bytes."""
        return len(msgspec.json.encode(self.values(name))) if self.declared else json_size(name)


@dataclass(frozen=True, slots=True)
class _TextQuestion:
    """The private groups of a question with their counts, and the names of the groups.

    ``top`` is the largest number of groups to publish, or None. ``is_too_large`` is True if a window's texts
    are missing because they exceed the limit.
    """

    groups: TextGroups
    names: _GroupNames
    top: int | None
    is_too_large: bool = False


class UnknownGroupsFamily(PaidFamily):
    """Streams of kind ``unknown_groups``."""

    def admit(self, slot: int, query: Any) -> _TextQuestion:
        """Resolve a question to the private counts of groups by a text of a column or of a window."""
        if self._context.trusts_values(slot):
            groups, is_too_large = read_text_counts(query)
            return _TextQuestion(groups, _GroupNames("", (), {}), None, is_too_large)
        form = require_form(query, "groups", "people_groups")
        counts = self._context.mechanism(slot, UnknownGroups).counts
        source, people = self._context.source_table(slot), form == "people_groups"
        if people and source.person is None:
            raise malformed_rejection(
                "people: the source declares no person column: one row is one person; leave people out"
            )
        if not counts and (people or query.top is not None):
            field = "people" if people else "top"
            raise malformed_rejection(
                f"{field}: the stream releases no counts; leave {field} out, or ask a stream with mechanism.counts"
            )
        names = _resolve_names(source, query.group_by)
        predicate = self._context.predicate(slot, query.where)
        try:
            groups = self._context.table(slot).text_groups(
                names.text, predicate, tuple(names.declared), people=people or not counts, max_cells=MAX_CATEGORIES
            )
        except TableDataError as error:
            raise malformed_rejection(f"group_by: {error}") from None
        return _TextQuestion(groups, names, query.top)

    def _reply(self, one: AdmittedQuestion) -> Reply:
        calibration = self._context.calibration(one.slot, UnknownGroupsCalibration)
        content: _TextQuestion = one.content
        key = event_subkey(
            self._streams.noise.subkey(one.slot, DrawRole.KEYS),
            self._context.topic,
            self._context.partition,
            one.offset,
            one.payload,
        )
        if calibration.most_bytes is not None:
            # The noise of the texts' size is drawn under the name of the empty text, which no window contains.
            noise = int(cell_noise(size_law(calibration), key, [b""])[0])
            size = window_text_size(content.groups.private_texts)
            if content.is_too_large or is_too_large(calibration, size, noise):
                return Reply(charged=True, estimates=(), keys=(), intervals=(), basis=TOO_MANY_TEXTS)
        reply = _reply_with_names if calibration.method == "selection" else _reply_with_counts
        return reply(calibration, content, key)


def _reply_with_counts(calibration: UnknownGroupsCalibration, asked: _TextQuestion, key: bytes) -> Reply:
    """Release the groups whose noisy counts reach the threshold, with these counts."""
    private_names = asked.groups.private_names()
    noise = cell_noise(count_law(calibration), key, private_names)
    groups = release_groups(private_names, asked.groups.private_counts, noise, calibration.threshold)
    shown = groups[: count_fitting_groups(groups, size_of=asked.names.json_size)][: asked.top]
    ends = (group_interval(calibration, group.rows) for group in shown)
    cells = asked.names.cells
    return Reply(
        charged=True,
        estimates=tuple(float(group.rows) for group in shown),
        intervals=tuple((float(low), float(high)) for low, high in ends),
        basis="noisy",
        alpha=calibration.alpha if cells == 1 else max(calibration.alpha, float(groups_reach(calibration, cells))),
        **_name_groups(asked.names, [group.text for group in shown]),
    )


def _reply_with_names(calibration: UnknownGroupsCalibration, asked: _TextQuestion, key: bytes) -> Reply:
    """Release groups by the number of their people, without counts."""
    private_names = asked.groups.private_names()
    words = name_words(key, private_names)
    found = release_keys(private_names, asked.groups.private_counts, words, rule_of(calibration))
    uncounted = [ReleasedGroup(name, 0) for name in found]
    shown = found[: count_fitting_groups(uncounted, size_of=asked.names.json_size)]
    return Reply(charged=True, basis="noisy", **_name_groups(asked.names, shown))


def _resolve_names(source: TableSource, group_by: Sequence[str]) -> _GroupNames:
    """Return the text and the declared attributes of a group-by; Rejection for other attributes."""
    texts = [name for name in group_by if name in source.texts]
    declared = [name for name in group_by if name in source.attributes]
    if len(texts) != 1 or len(texts) + len(declared) != len(group_by) or len(set(declared)) < len(declared):
        raise malformed_rejection(
            f"group_by: this stream groups by one text attribute; give one of {quote_names(source.texts)}, alone or with declared "
            "attributes, each once"
        )
    return _GroupNames(texts[0], tuple(group_by), {name: values_of(source.attributes[name]) for name in declared})


def _name_groups(names: _GroupNames, released: Sequence[bytes]) -> dict[str, Any]:
    """Return the field of an answer that names the released groups."""
    if names.declared:
        return {"top_groups": tuple(names.values(name) for name in released)}
    return {"keys": tuple(name.decode() for name in released)}
