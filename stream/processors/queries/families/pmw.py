"""The streams of kind ``pmw``: each by the rule that its calibration was planned for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.processors.queries.families.base import Asked, Context, Family, Reply, stream_by_stream
from stream.processors.queries.families.estimates import EstimateFamily
from stream.processors.queries.families.hypothesis import TensorFamily


class PmwFamily:
    """Estimates from all measurements, or multiplicative weights."""

    def __init__(self, context: Context) -> None:
        self._streams = context.streams
        self._by_calibration: dict[str, Family] = {
            "estimate": EstimateFamily(context),
            "hypothesis": TensorFamily(context),
        }

    def admit(self, slot: int, query: Any) -> Any:
        """Resolve a question, or raise Rejection."""
        return self._of(slot).admit(slot, query)

    def answer(self, questions: Sequence[Asked]) -> list[Reply | None]:
        """Answer questions in order, each stream's in one run."""
        return stream_by_stream(questions, lambda slot, own: self._of(slot).answer(own))

    def resume(self, slot: int, updates: Sequence[Any]) -> None:
        """Take a stream's updates from the changelog, in order."""
        self._of(slot).resume(slot, updates)

    def _of(self, slot: int) -> Family:
        return self._by_calibration[self._streams.terms_at(slot).calibration.kind]
