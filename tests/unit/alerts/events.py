"""Alerts that tests send."""

from __future__ import annotations

import json
from typing import Any

from schemas import Answer
from stream.alerts.delivery import Alert
from stream.questions.alert_states import AlertTerms
from stream.questions.stream_watch import StreamOpening

NOW = 1_700_000_000.0
OPENING = StreamOpening("late", "flights", "ab" * 16, "open", None, 0.0, AlertTerms(900.0, "delay >= 60"))


def alert(index: int = 0, *, warnings: tuple[str, ...] = (), **fields: Any) -> Alert:
    given = {
        "id": f"2013-01-01T05:00:00Z/{index}",
        "stream": "late",
        "outcome": "above",
        "index": index,
        "estimate": 31.5,
        "alpha": 4.0,
        "tops_left": 46,
        "spent": {"epsilon": 0.5, "delta": 0.0},
        "window": {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"},
        "group": {"origin": "EWR"},
    }
    answer = Answer.model_validate_json(json.dumps({**given, **fields}))
    return Alert("sotto", OPENING, answer, NOW, warnings=warnings)
