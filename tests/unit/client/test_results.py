"""Results have their question, name their groups, and become frames; errors of unanswered questions have one base class."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from schemas import Answer
from sotto import (
    Driver,
    Exhausted,
    Halted,
    Invalid,
    NotAnswered,
    Refused,
    Rejected,
    Result,
    Results,
    SottoError,
    Timeout,
    Unknown,
)
from stream.formatting import ROWS_LEFT_OUT
from stream.questions.question_forms import as_settings
from tests.builders import installation, source, stream
from tests.unit.installation import HIGH, LOW, spec

ROWS: dict[str, list[Any]] = {"sex": ["F", "M"] * 30, "size": [0.5, 1.5, 3.0] * 20, "alpha": list(range(3)) * 20}
SOURCE = source(
    "people",
    "table",
    epsilon=100.0,
    attributes={
        "sex": ["F", "M"],
        "size": {"kind": "bins", "edges": [0.0, 1.0, 2.0, 4.0]},
        "alpha": {"kind": "integers", "minimum": 0, "maximum": 2},
    },
)


def table_driver() -> Driver:
    counts = stream("counts", "people", "laplace", mechanism={"answers": 20, "dimensions": 12}, epsilon=50.0)
    return installation(counts, sources=[SOURCE], rows={"people": ROWS}, partitions=4)


def test_result_has_groups_beside_its_numbers() -> None:
    result = table_driver().ask("counts", group_by=["sex", "size"])
    assert result.groups is not None
    assert result.groups[:3] == (
        {"sex": "F", "size": "[0, 1)"},
        {"sex": "F", "size": "[1, 2)"},
        {"sex": "F", "size": "[2, 4]"},
    )
    assert len(result.groups) == len(result.estimates or ()) == 6
    true = {("F", "[0, 1)"): 10, ("F", "[1, 2)"): 10, ("M", "[2, 4]"): 10}
    found = {(row["sex"], row["size"]): row["estimate"] for row in result.rows()}
    assert all(abs(found[group] - count) <= (result.alpha or 0.0) for group, count in true.items())
    assert result.query is not None
    assert result.query.group_by == ("sex", "size")


def test_results_convert_to_frames_of_each_kind() -> None:
    results = table_driver().ask_many(
        [
            {"stream": "counts", "group_by": ["sex", "alpha"]},
            {"stream": "counts", "where": "sex = 'F'"},
            {"stream": "counts", "where": "nothing = 1"},
        ]
    )
    frame = results.to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert frame.height == 6 + 1 + 1
    assert {"stream", "outcome", "sex", "alpha*", "estimate", "alpha", "reason"} <= set(frame.columns)
    assert frame["outcome"].to_list()[-2:] == ["answer", "rejected"]
    assert frame["alpha*"].to_list()[:4] == [0, 1, 2, 0]
    assert isinstance(results.to_pandas(), pd.DataFrame)
    assert isinstance(results.to_arrow(), pa.Table)
    assert results.to_pandas()["estimate"].notna().tolist() == frame["estimate"].is_not_null().to_list()
    assert results.to_arrow().column("estimate").to_pylist() == frame["estimate"].to_list()
    one = results[1]
    assert (one.to_polars().height, len(one.to_pandas()), one.to_arrow().num_rows) == (1, 1, 1)


def test_result_shows_its_error_bar() -> None:
    driver = table_driver()
    one, groups = driver.ask("counts", where="sex = 'F'"), driver.ask("counts", group_by=["sex"])
    assert re.fullmatch(
        rf"<Result counts: [\d.]+ ± [\d.]+ \(95 %: [\d.]+ to [\d.]+\) · stream spent ε 2\.5 \(warning: {ROWS_LEFT_OUT}\)>",
        repr(one),
    )
    drawn = groups._repr_html_()
    assert drawn.count("<svg") == 2
    assert {"<th>sex</th>", "<th>±</th>", "<td>F</td>"} <= set(re.findall(r"<t[hd]>[^<]*</t[hd]>", drawn))
    listed = driver.ask_many([{"stream": "counts", "where": "sex = 'F'"}] * 12)
    assert repr(listed).splitlines()[0] == "<12 results>"
    assert repr(listed).endswith("… 2 more")
    assert listed._repr_html_().count("<svg") == 12


def test_result_escapes_html() -> None:
    hostile = Answer(id="1", stream="<b>", outcome="rejected", reason="<script>")
    shown = Result.model_validate(hostile.model_dump())._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "<b>" not in shown


def test_result_equals_its_answer() -> None:
    driver = installation(spec("alarms"))
    result = driver.ask("alarms", value=LOW)
    answer = Answer.model_validate(result.model_dump())
    assert result == answer
    assert answer == result
    assert hash(result) == hash(answer)
    assert result.model_dump_json() == answer.model_dump_json()
    assert list(driver.answers(from_beginning=True)) == [answer]
    assert Results([result])[:1] == [answer]


def test_ask_raises_or_returns_unanswered_outcomes() -> None:
    driver = installation(spec("alarms", cutoff=1), spec("ended"))
    with pytest.raises(Rejected, match="rejected the question") as rejected:
        driver.ask("nobody", value=1.0)
    assert rejected.value.answer.outcome == "rejected"
    assert driver.ask("nobody", value=1.0, outcomes=True).outcome == "rejected"
    assert driver.ask("alarms", value=HIGH).outcome == "above"
    with pytest.raises(Exhausted, match="exhausted"):
        driver.ask("alarms", value=HIGH)
    driver.close("feed", "ended", reason="the study is over")
    with pytest.raises(Halted, match="the study is over") as halted:
        driver.ask("ended", value=HIGH)
    assert not isinstance(halted.value, Exhausted)
    outcomes = driver.ask_many([{"stream": name, "value": LOW} for name in ("nobody", "alarms", "ended")])
    assert [one.outcome for one in outcomes] == ["rejected", "halted", "halted"]
    with pytest.raises(Rejected):
        outcomes.checked()


def test_errors_have_common_base_class() -> None:
    driver = installation(spec("alarms"))
    with pytest.raises(Refused, match="was used before"):
        driver.open(spec("alarms"))
    with pytest.raises(Refused, match="cannot pay") as refused:
        driver.open(spec("dear", epsilon=100.0))
    assert refused.value.asked is not None
    assert refused.value.left is not None
    with pytest.raises(Unknown, match="source 'nobody'"):
        driver.budget("nobody")
    with pytest.raises(Unknown, match="stream 'nobody'"):
        driver.grant("feed", "nobody")
    with pytest.raises(Invalid, match="valve: unknown field"):
        driver.ask("alarms", valve=1.0)
    with pytest.raises(Invalid, match="epsilon"):
        driver.open({**spec("worse"), "epsilon": -1.0})
    with pytest.raises(Invalid, match="kind"):
        driver.register({"source": "odd"})
    assert all(issubclass(one, SottoError) for one in (Refused, NotAnswered, Timeout, Unknown, Invalid))
    assert issubclass(Timeout, TimeoutError)


def test_settings_error_uses_given_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong setting is named as it was given: by keyword or by variable."""
    with pytest.raises(Invalid, match=r"^partitions: is not an integer"):
        as_settings(None, {"partitions": "many"})
    monkeypatch.setenv("SOTTO_BATCH_EVENTS", "0")
    with pytest.raises(Invalid, match=r"^SOTTO_BATCH_EVENTS: 0 is too small"):
        as_settings(None, {"partitions": 3})


def test_list_sources_and_list_streams_return_all() -> None:
    driver = installation(spec("b"), spec("a"))
    driver.register(SOURCE, ROWS)
    assert sorted(one.source.source for one in driver.list_sources()) == ["feed", "people"]
    assert sorted(one.spec.stream for one in driver.list_streams()) == ["a", "b"]
    assert driver.list_streams("people") == []
    assert driver.grant("feed", "a") in driver.list_streams("feed")
    with pytest.raises(Unknown):
        driver.list_streams("nobody")
