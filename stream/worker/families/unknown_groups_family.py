"""The family of unknown_groups: noisy counts of those texts of a column that enough rows have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import UnknownGroupsCalibration
from stream.privacy.mechanisms.unknown_groups import release, shortened
from stream.privacy.noise import DrawRole, cell_noise, event_subkey
from stream.privacy.planning.unknown_groups_plans import count_law, group_interval
from stream.processing.dead_letters import Rejection
from stream.tables.table_errors import listed
from stream.worker.families.family import AdmittedQuestion, Family, Reply, require_form


@dataclass(frozen=True, slots=True)
class _TextCounts:
    """The private texts of a column, and the number of matching rows of each.

    ``top`` is the largest number of groups to publish, or None.
    """

    private_texts: tuple[bytes, ...]
    private_counts: npt.NDArray[np.int64]
    top: int | None


class UnknownGroupsFamily(Family):
    """Streams of kind ``unknown_groups``."""

    def admit(self, slot: int, query: Any) -> _TextCounts:
        """Resolve a question to the private counts of a column's texts."""
        require_form(query, "groups")
        source = self._context.source_table(slot)
        if len(query.group_by) != 1 or query.group_by[0] not in source.texts:
            raise Rejection(
                "malformed",
                f"group_by: this stream groups by one text attribute; give one of {listed(source.texts)}, and conditions on "
                "other attributes in where",
            )
        predicate = self._context.predicate(slot, query.where)
        table, [name] = self._context.table(slot), query.group_by
        counts = table.text_counts(name, predicate)
        return _TextCounts(table.private_texts[name].private_texts, counts, query.top)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer each question that the grant pays for, with noise on the counts of all texts."""
        return self._answer_affordable(questions, lambda _, own: [self._reply(one) for one in own])

    def _reply(self, one: AdmittedQuestion) -> Reply:
        calibration = self._context.calibration(one.slot, UnknownGroupsCalibration)
        content: _TextCounts = one.content
        key = event_subkey(
            self._streams.noise.subkey(one.slot, DrawRole.KEYS),
            self._context.topic,
            self._context.partition,
            one.offset,
            one.payload,
        )
        noise = cell_noise(count_law(calibration), key, content.private_texts)
        groups = release(content.private_texts, content.private_counts, noise, calibration.threshold)
        shown = groups[: shortened(groups)][: content.top]
        ends = (group_interval(calibration, group.rows) for group in shown)
        return Reply(
            charged=True,
            estimates=tuple(float(group.rows) for group in shown),
            keys=tuple(group.text.decode() for group in shown),
            intervals=tuple((float(low), float(high)) for low, high in ends),
            basis="noisy",
            alpha=calibration.alpha,
        )
