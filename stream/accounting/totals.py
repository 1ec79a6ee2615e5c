"""How far totals reach that are compared, chosen by, or counted in windows.

What lies beyond is cut short, which no answer may show. So nothing is planned for an attribute whose sums might.
"""

from __future__ import annotations

from typing import Final

from schemas import Integers
from schemas.sources import MAX_ROWS
from stream.accounting.refusals import RefusedError

LARGEST_TOTAL: Final = 1 << 53
"""A table's counts and totals reach so far to either side: as far as doubles tell whole numbers apart."""

LARGEST_SUMMED: Final = LARGEST_TOTAL // MAX_ROWS
"""Values up to this add up to no more, however many rows a table has; in a window ⅛ as many events do to what a live topic's numbers reach."""


def require_total(domain: Integers, name: str, field: str) -> None:
    """RefusedError if sums of an attribute might be cut short."""
    furthest = max(abs(domain.minimum), abs(domain.maximum))
    if furthest > LARGEST_SUMMED:
        raise RefusedError(
            f"{field}: '{name}' has values up to {furthest:,} from 0, and sums are exact for values up to {LARGEST_SUMMED:,}; register it "
            "counted from nearer by, in larger units, or in a narrower range"
        )
