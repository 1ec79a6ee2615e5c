"""Wrong separations of periods: each variant replaces one part of the real feeds or of merging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.feeds import merge_state
from stream.feeds.merge_processor import MergeProcessor
from stream.feeds.merge_state import MergedStreamState, RunningSums
from stream.feeds.tally import CountingRule
from tests.privacy.audit_variants import Surgery, Variant


def windows_over_an_edge(surgery: Surgery) -> None:
    """A window that spans two periods asks the period in which it begins, so its events count in both periods."""
    surgery.patch.setattr(merge_state, "lies_in_one_period", lambda *_: True)


def windows_asked_of_the_period_before(surgery: Surgery) -> None:
    """The first window of a period asks the previous period."""
    names = merge_state._period_names

    def before(definition: Any, start: int) -> tuple[str, str]:
        late = start % definition.source.period_ms == 0 and start > 0
        return names(definition, start - definition.source.period_ms * late)

    surgery.patch.setattr(merge_state, "_period_names", before)


def bound_over_all_periods(surgery: Surgery) -> None:
    """Events of a person that counted in one period reduce the number of events that count in the next."""
    surgery.patch.setattr(CountingRule, "period_of", lambda *_: 0)


def bound_for_each_window(surgery: Surgery) -> None:
    """A person's events in a period are bounded in each window, but not over the whole period."""
    surgery.patch.setattr(CountingRule, "period_of", lambda rule, start: start // rule.interval_ms)


def sums_carried_over(surgery: Surgery) -> None:
    """A running count continues with the sums of the previous period, so events of that period are published again."""
    ask = MergeProcessor._ask_window
    totals: dict[str, tuple[str, list[int]]] = {}

    class Carried(RunningSums):
        def add(self, definition: Any, start: int, counts: Sequence[int]) -> range:
            name, account = definition.spec.stream.partition("@")[0], definition.source.source
            last, sums = totals.get(name, (account, [0] * len(counts)))
            if last != account:
                counts = [one + more for one, more in zip(counts, sums, strict=True)]
                sums = [0] * len(counts)
            totals[name] = (account, [one + more for one, more in zip(sums, counts, strict=True)])
            return super().add(definition, start, counts)

    def carrying(
        self: MergeProcessor, outputs: Any, model: str, definition: Any, merged: MergedStreamState, window: Any
    ) -> dict[bytes, bytes]:
        if not isinstance(merged.running, Carried):
            running = merged.running
            merged.running = Carried(
                running.windows, running.are_lost, running.groups, running.texts, running.kept
            )
        return ask(self, outputs, model, definition, merged, window)

    surgery.patch.setattr(MergeProcessor, "_ask_window", carrying)


VARIANTS: tuple[Variant, ...] = (
    windows_over_an_edge,
    windows_asked_of_the_period_before,
    bound_over_all_periods,
    bound_for_each_window,
    sums_carried_over,
)
