"""``sotto plan --about pairs``: recommends a mechanism for all questions about two attributes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from schemas import Source, TableSource
from stream.cli.output import CommandError, console, show_json, show_table
from stream.cli.plan.plan_facts import SourceOptions, facts_of_source, parse_source
from stream.formatting import format_error_bound
from stream.privacy.planning.workload_choices import (
    StreamFigures,
    WorkloadChoice,
    compare_mechanisms,
    is_informative,
    mean_count,
)

_NAME_PREFIX: Final = "any"


def show_workload(options: SourceOptions, figures: StreamFigures, *, as_json: bool) -> None:
    """Print the expected error of a pair's cell for each mechanism, and the best one's definition."""
    source = parse_source(options)
    if source is not None and not isinstance(source, TableSource):
        raise CommandError(
            "--about: needs the attributes of a table; give --source with a table source, or --sizes"
        )
    facts = facts_of_source("groups", source, options)
    found = compare_mechanisms(facts, _attribute_names(source, len(facts.sizes)), figures)
    best, mean = found[0], mean_count(facts)
    informative = None if best.error is None or mean is None else is_informative(best.error, mean)
    if as_json:
        show_json(
            {
                "about": "pairs",
                "choice": None if best.error is None else best.kind,
                "mechanism": None if best.error is None else best.mechanism,
                "mean_count": mean,
                "informative": informative,
                "mechanisms": [asdict(one) for one in found],
            }
        )
        return
    show_table(
        f"counts of all pairs of {len(facts.sizes)} attributes: ε {figures.epsilon:g}, δ {figures.delta:g}",
        ["", "mechanism", "expected error of a cell", "why"],
        [
            ["→" if one is best and one.error is not None else "", one.kind, _format_error(one), one.why]
            for one in found
        ],
    )
    if best.error is None:
        raise CommandError("--about: no mechanism answers questions about two of these attributes; see above")
    console.print(
        f"→ take {best.kind}: a count of a cell errs by about {_format_error(best)} rows", soft_wrap=True
    )
    if informative is False and mean is not None:
        console.print(
            f"  not informative: a cell has about {mean:,.3g} rows; give a larger ε, or fewer or smaller attributes",
            soft_wrap=True,
        )
    elif mean is None:
        console.print("  with --rows it also says whether that is informative", soft_wrap=True)
    console.print(f"  mechanism: {json.dumps(best.mechanism)}", highlight=False, soft_wrap=True)


def _attribute_names(source: Source | None, count: int) -> list[str]:
    return (
        list(source.attributes)
        if isinstance(source, TableSource)
        else [f"{_NAME_PREFIX}{n}" for n in range(count)]
    )


def _format_error(choice: WorkloadChoice) -> str:
    return "–" if choice.error is None else format_error_bound(choice.error, grouped=True)
