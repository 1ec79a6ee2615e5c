"""Noisy threshold answers with Quix Streams, exactly once, until SIGTERM.

Arguments: bootstrap address, input topic, output topic, state folder. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from quixstreams import Application, State  # type: ignore[import-not-found]

QUERY_SCALE = 4.0
THRESHOLD_SCALE = 2.0


def laplace(scale: float) -> float:
    """Laplace noise from Python's own generator."""
    return scale * (random.expovariate(1.0) - random.expovariate(1.0))


def answer(event: dict[str, Any], state: State) -> dict[str, Any]:
    """Answer one query; the state is its stream's."""
    answered = state.get("answered", 0)
    shift = state.get("shift")
    if shift is None:
        shift = laplace(THRESHOLD_SCALE)
        state.set("shift", shift)
    state.set("answered", answered + 1)
    above = event["value"] + laplace(QUERY_SCALE) >= event["threshold"] + shift
    return {
        "id": event["id"],
        "stream": event["stream"],
        "index": answered,
        "outcome": "above" if above else "below",
    }


def main(bootstrap: str, source: str, sink: str, folder: str) -> None:
    """Build the pipeline and run it."""
    application = Application(
        broker_address=bootstrap,
        consumer_group=f"quix-{sink}",
        processing_guarantee="exactly-once",
        auto_offset_reset="earliest",
        commit_every=5000,
        state_dir=folder,
        loglevel="WARNING",
    )
    queries = application.topic(source, value_deserializer="json", key_deserializer="bytes")
    answers = application.topic(sink, value_serializer="json", key_serializer="bytes")
    frame = application.dataframe(queries).apply(answer, stateful=True)
    frame.to_topic(answers)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:5])
