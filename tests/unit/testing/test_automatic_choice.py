"""Streams that are opened with the mechanism ``auto``, and openings that are not informative."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from schemas import EstimateCalibration, Laplace, OpeningSpec, OpenStream, Pmw
from sotto import Driver, Refused
from stream.budget.mechanism_choice import choose_mechanism, opening_warning
from stream.budget.openings import plan_stream
from tests.builders import KEY, source
from tests.commands import connect_commands, run_connected

ATTRIBUTES: dict[str, Any] = {"sex": ["F", "M"], "age": 10, "town": 6, "income": 8}
ROWS = 3000


def columns(seed: int = 1, rows: int = ROWS) -> dict[str, list[Any]]:
    draw = random.Random(seed)
    sizes = {name: len(one) if isinstance(one, list) else one for name, one in ATTRIBUTES.items()}
    found: dict[str, list[Any]] = {
        name: [draw.randrange(size) for _ in range(rows)] for name, size in sizes.items()
    }
    return {**found, "sex": ["FM"[code] for code in found["sex"]]}


def table(neighbors: str = "add-remove", rows: dict[str, list[Any]] | None = None) -> Driver:
    made = Driver(KEY, partitions=1)
    defined = source("t", "table", path="-", attributes=ATTRIBUTES, neighbors=neighbors, epsilon=50.0)
    made.register(defined, rows or columns())
    return made


def auto(name: str = "s", **changes: Any) -> dict[str, Any]:
    return {"stream": name, "source": "t", "mechanism": "auto", "epsilon": 1.0, **changes}


def test_auto_publishes_a_definition_with_the_best_mechanism() -> None:
    driver = table()
    receipt = driver.open(auto())
    errors = [one.error for one in receipt.compared if one.error is not None]
    assert errors == sorted(errors)
    assert driver.grant("t", "s").spec.mechanism.kind == receipt.compared[0].kind == "histogram"
    assert driver.ask("s", group_by=["sex", "age"]).outcome == "answer"
    driver.crash()
    assert driver.ask("s", group_by=["sex"]).outcome == "answer"
    entries = [json.loads(one.value or b"{}") for one in driver.records(driver.topics.trail)]
    assert [one["mechanism"] for one in entries if one.get("action") == "open"] == ["histogram"]


def test_auto_is_decided_without_the_rows() -> None:
    receipts = [table(rows=columns(seed, rows)).open(auto()) for seed, rows in ((1, 3000), (2, 7))]
    assert receipts[0].compared == receipts[1].compared


def test_auto_pays_for_all_expected_queries() -> None:
    driver = table()
    assert driver.open(auto("few", expected_queries=3)).compared[0].kind == "laplace"
    mechanism = driver.grant("t", "few").spec.mechanism
    assert isinstance(mechanism, Laplace)
    assert (mechanism.answers, mechanism.dimensions) == (3, 80)
    for names in (["sex", "age"], ["town", "income"], ["age", "income"]):
        assert driver.ask("few", group_by=names).outcome == "answer"


def test_auto_keeps_a_workload_of_named_sets() -> None:
    driver = table()
    workload = [["sex", "age", "town"], ["town", "income"]]
    driver.open(auto(mechanism={"kind": "auto", "workload": workload}))
    mechanism = driver.grant("t", "s").spec.mechanism
    assert isinstance(mechanism, Pmw)
    assert [list(names) for names in mechanism.workload] == workload
    receipt = driver.open(auto("one", mechanism={"kind": "auto", "workload": [["age"], ["sex"]]}))
    assert receipt.compared[0].error is not None


def test_auto_measures_pairs_for_most_of_epsilon() -> None:
    """The questions are about pairs: their error is a fifth smaller than with pmw's own plan, and α is hardly larger."""
    driver = Driver(KEY, partitions=1)
    attributes = dict.fromkeys("abcde", 24)
    driver.register(
        source("t", "table", path="-", attributes=attributes, epsilon=50.0), {name: [0, 1] for name in "abcde"}
    )
    driver.open(auto())
    driver.open(auto("plain", mechanism={"kind": "pmw", "attributes": list(attributes)}))
    chosen, plain = (driver.grant("t", name) for name in ("s", "plain"))
    assert isinstance(chosen.spec.mechanism, Pmw)
    assert isinstance(chosen.calibration, EstimateCalibration)
    assert isinstance(plain.calibration, EstimateCalibration)
    assert chosen.calibration.epsilon_start > 1.2 * plain.calibration.epsilon_start
    assert chosen.calibration.alpha < 1.3 * plain.calibration.alpha


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"calibration": "textbook"}, "calibration: auto always uses 'best'"),
        (
            {"mechanism": {"kind": "auto", "attributes": ["sex"]}},
            "mechanism.workload: one attribute makes no pairs; give",
        ),
        (
            {"mechanism": {"kind": "auto", "attributes": ["sex", "wage"]}},
            "mechanism.attributes: name 2 is no attribute",
        ),
        ({"mechanism": {"kind": "auto", "workload": [["sex", "wage"]]}}, "mechanism.workload: 'wage'"),
    ],
)
def test_auto_refuses_mechanism_fields_unfit_for_the_table(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        table().open(auto(**changes))


def test_auto_is_for_tables_alone() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(source())
    with pytest.raises(Refused, match=r"mechanism.kind: auto chooses a mechanism for a table"):
        driver.open(auto(source="feed"))


def test_uninformative_opening_must_be_acknowledged() -> None:
    driver = table("replace")
    for mechanism in ("auto", {"kind": "laplace", "answers": 100}):
        wanted = auto(f"s-{len(mechanism)}", mechanism=mechanism, epsilon=0.01)
        with pytest.raises(Refused, match=r"promise: not informative.*give a larger epsilon.*acknowledge"):
            driver.open(wanted)
        assert driver.budget("t").granted.epsilon in {0.0, 0.01}
        assert driver.open(wanted, acknowledge=True).outcome == "opened"


def test_request_without_the_field_opens_any_promise() -> None:
    driver = table("replace")
    spec = OpeningSpec.model_validate(auto(mechanism={"kind": "laplace", "answers": 100}, epsilon=0.01))
    raw = OpenStream(request="1", stream=spec)
    assert "informative" not in raw.model_dump_json()
    assert driver.request(raw).outcome == "opened"


@pytest.mark.parametrize(("threshold", "is_refused"), [(100.0, False), (2.0, True), (0.0, False), (-2.0, True)])
def test_threshold_within_the_error_is_not_informative(threshold: float, is_refused: bool) -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(source())
    spec = auto(source="feed", mechanism={"kind": "above_threshold", "threshold": threshold}, expected_queries=5)
    if is_refused:
        with pytest.raises(Refused, match="more than the threshold"):
            driver.open(spec)
    else:
        assert driver.open(spec).outcome == "opened"


def test_value_with_a_narrow_range_is_not_informative() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(source("narrow", minimum=0.0, maximum=10.0))
    driver.register(source("wide", minimum=0.0, maximum=1000.0))
    laplace = {"kind": "laplace", "answers": 10}
    with pytest.raises(Refused, match="a third of the range from 0 to 10"):
        driver.open(auto("n", source="narrow", mechanism=laplace))
    assert driver.open(auto("w", source="wide", mechanism=laplace)).outcome == "opened"


def test_command_explains_the_choice_and_asks_for_force(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = table("replace")
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "200")
    said = run_connected("stream", "open", json.dumps(auto()))
    assert "auto took histogram: a count of the workload is expected to err by" in said
    assert re.search(r"; pmw is expected to err by [\d.,]+ rows on average over example tables", said)
    assert re.search(
        r"; laplace is expected to err by [\d.,]+ rows \(one charged answer for each of [\d,]+ questions", said
    )
    useless = json.dumps(auto("useless", epsilon=0.01))
    with pytest.raises(Refused, match="not informative"):
        run_connected("stream", "open", useless)
    assert "stream useless is open" in run_connected("stream", "open", useless, "--force")
    assert "mechanism.rows" not in said


def test_command_asks_for_a_guess_of_a_private_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no promise is refused, however large its error is; with it an uninformative one is."""
    connect_commands(monkeypatch, table())
    useless = auto("useless", epsilon=0.01)
    said = run_connected("stream", "open", json.dumps(useless))
    assert "give a public guess in mechanism.rows, and a stream that is not informative is refused" in said
    guessed = {**useless, "stream": "other", "mechanism": {"kind": "auto", "rows": ROWS}}
    with pytest.raises(Refused, match="not informative"):
        run_connected("stream", "open", json.dumps(guessed))


def test_command_compares_a_promise_with_the_guessed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is by the expected error of the workload, so α may be far larger."""
    driver, names = Driver(KEY, partitions=1), [f"a{number}" for number in range(10)]
    wide = source("t", "table", path="-", attributes=dict.fromkeys(names, 4), neighbors="add-remove", epsilon=50.0)
    driver.register(wide, {name: [0, 1] for name in names})
    connect_commands(monkeypatch, driver)
    asked = auto(epsilon=0.25, mechanism={"kind": "auto", "rows": 12_000})
    said = " ".join(run_connected("stream", "open", json.dumps(asked)).split())
    assert "the promise of 5,171 is more than a third of the 12,000 rows" in said
    asked = auto("large", epsilon=5.0, mechanism={"kind": "auto", "rows": 12_000})
    assert "more than a third" not in run_connected("stream", "open", json.dumps(asked))


@pytest.mark.parametrize("mechanism", [{"kind": "auto"}, {"kind": "laplace", "answers": 3}])
def test_warning_about_auto_does_not_advise_auto(mechanism: dict[str, Any]) -> None:
    asked = OpeningSpec.model_validate(auto(mechanism=mechanism, epsilon=0.1, expected_queries=3))
    about = table().budget("t").source
    chosen = choose_mechanism(asked, about)
    assert isinstance(chosen.spec.mechanism, Laplace)
    warning = opening_warning(chosen, plan_stream(chosen.spec, about), about, about_rows=10)
    assert warning is not None
    assert warning.endswith("take 'auto'" if mechanism["kind"] == "laplace" else "or fewer answers")
