"""Compares the errors of running counts after a whole horizon with those of the dyadic tree and of windows with separate noise.

The first two are measured: many streams are asked for their last window through the services' own processors in memory. What is
made of noisy windows has the exact deviation of so many draws of the law that its plan names.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import numpy as np

from benchmarks.report import console, markdown_line
from schemas import Laplace, RunningCountCalibration, StreamSpec, format_moment
from sotto import Driver
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import answer_law
from stream.privacy.planning.plans import plan_calibrations
from stream.privacy.planning.release_plans import answer_alpha, node_law, tree_of

HORIZONS = (24, 365, 8760)
TOTAL = 5
STREAMS = 400
DAY_MS = 86_400_000
_HEADINGS = (
    "windows",
    "",
    "levels",
    "most sums an answer",
    "root mean square error",
    "as planned",
    "α of all answers",
)

SOURCE: dict[str, Any] = {
    "source": "topic",
    "kind": "events",
    "topic": "events",
    "neighbors": "add-remove",
    "epsilon": 1000,
    "person": "who",
    "time": "at",
    "total": TOTAL,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and show a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.running_count_accuracy", description=__doc__)
    parser.parse_args(arguments)
    rows = [row for steps in HORIZONS for row in rows_of(steps)]
    lines = [markdown_line(row) for row in (_HEADINGS, ("---",) * len(_HEADINGS), *rows)]
    told = f"ε = 1, one group, a person counts {TOTAL} times in all and once in a window, β = 0.05; {STREAMS} streams, after their last window."
    text = "\n".join([told, "", *lines])
    console.print(text, highlight=False)


def rows_of(steps: int) -> list[tuple[str, ...]]:
    """All contenders after so many windows."""
    best, dyadic = (measured(steps, calibration) for calibration in ("best", "textbook"))
    return [
        (f"{steps:,}", "`running_count`", *best),
        ("", "the dyadic tree", *dyadic),
        ("", "each window with noise for `total`, added up", "1", f"{steps:,}", "", noised_once(steps), ""),
        ("", "`laplace`, each window charged, added up", "", f"{steps:,}", "", charged(steps), ""),
    ]


def measured(steps: int, calibration: str) -> tuple[str, ...]:
    """Return the errors of streams with one calibration after their last window."""
    driver = Driver(bytes(range(32)), partitions=1)
    driver.register(SOURCE)
    mechanism = {"kind": "running_count", "steps": steps}
    standing = {"window": {"size": "1d"}, "begins": format_moment(0)}
    names = [f"stream-{number}" for number in range(STREAMS)]
    for name in names:
        spec = {"stream": name, "source": "topic", "epsilon": 1, "mechanism": mechanism, "standing": standing}
        driver.open({**spec, "calibration": calibration}, acknowledge=True)
    opened = json.loads(driver.records(driver.topics.control)[-1].value or b"{}")["calibration"]
    plan = RunningCountCalibration.model_validate_json(json.dumps(opened))
    nodes = len(tree_of(plan).nodes(steps))
    last = {"start": format_moment((steps - 1) * DAY_MS), "end": format_moment(steps * DAY_MS)}
    asked = ({"id": name, "stream": name, "values": [0.0] * nodes, "window": last} for name in names)
    errors = np.array([answer.estimate for answer in driver.ask_many([json.dumps(one).encode() for one in asked])])
    planned = math.sqrt(nodes * variance_of(node_law(plan)))
    return (
        str(plan.levels),
        str(plan.nodes),
        f"{math.sqrt(float(np.mean(errors**2))):,.0f}",
        f"{planned:,.0f}",
        f"{answer_alpha(plan, plan.nodes):,.0f}",
    )


def noised_once(steps: int) -> str:
    """The deviation where each window is noised for all that a person does in all of them."""
    return f"{math.sqrt(2.0 * steps) * TOTAL:,.0f}"


def charged(steps: int) -> str:
    """The deviation of the sum of as many answers of laplace, at the least that its plans take."""
    mechanism = Laplace(kind="laplace", answers=steps)
    spec = StreamSpec(stream="s", source="t", mechanism=mechanism, epsilon=1.0, expected_queries=steps)
    variances = [variance_of(answer_law(plan, 1, 1)) for plan in plan_calibrations(spec, SourceFacts())]  # type: ignore[arg-type]
    return f"{math.sqrt(steps * min(variances)):,.0f}"


if __name__ == "__main__":
    main()
