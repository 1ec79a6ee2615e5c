"""A feed of a ward, and a stream on it."""

from __future__ import annotations

from typing import Any

FEED: dict[str, Any] = {
    "source": "feed",
    "kind": "values",
    "neighbors": "replace",
    "epsilon": 5.0,
    "sensitivity": 1.0,
}
WARD: dict[str, Any] = {
    "stream": "ward",
    "source": "feed",
    "epsilon": 1.0,
    "mechanism": {"kind": "above_threshold", "threshold": 0.0, "cutoff": 100},
}
