"""Sources and streams of the tests on Kafka."""

from __future__ import annotations

FEED = {"source": "feed", "kind": "values", "neighbors": "add-remove", "epsilon": 3.0, "sensitivity": 1.0}


def spec(stream: str, epsilon: float = 1.0, cutoff: int = 2) -> dict[str, object]:
    mechanism = {"kind": "above_threshold", "threshold": 1000.0, "cutoff": cutoff}
    return {"stream": stream, "source": "feed", "mechanism": mechanism, "epsilon": epsilon}
