"""Questions with a wanted accuracy: their answers, charges and refusals on laplace and pmw."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from schemas import Answer, Query
from sotto import Driver
from stream.cli.app import app
from stream.dev.simulation_run import simulate
from stream.errors import Exhausted
from stream.privacy.composition.costs import PARTS_PER_CHARGE, RefusedError
from stream.worker.stream_records import UPDATE_PREFIX
from tests.builders import KEY, installation, parse_stream, source, stream
from tests.unit.people import AGES, PEOPLE, ROWS, SEXES, TABLE, TOWNS, Row


def driver(*specs: dict[str, Any], neighbors: str = "add-remove", **changes: Any) -> Driver:
    attributes = {
        "age": {"kind": "integers", "minimum": 0, "maximum": AGES - 1},
        "sex": list(SEXES),
        "town": TOWNS,
    }
    fields: dict[str, Any] = {
        "neighbors": neighbors,
        "epsilon": 500.0,
        "delta": 1e-4,
        "attributes": attributes,
        **changes,
    }
    return installation(*specs, sources=[source("people", "table", **fields)], rows={"people": PEOPLE})


def laplace(answers: int = 10, **more: Any) -> dict[str, Any]:
    mechanism = {"kind": "laplace", "answers": answers}
    return stream("s", "people", mechanism=mechanism, expected_queries=100) | more


def pmw(**more: Any) -> dict[str, Any]:
    mechanism = {"kind": "pmw", "attributes": ["age", "sex", "town"], "warm_start": 0, **more.pop("mechanism", {})}
    fields: dict[str, Any] = {"epsilon": 8.0, "expected_queries": 500, **more}
    return stream("s", "people", mechanism=mechanism, **fields)


def ask(made: Driver, *questions: dict[str, Any]) -> list[Answer]:
    return list(made.ask_many({"id": str(place), "stream": "s", **one} for place, one in enumerate(questions)))


def only(made: Driver, question: dict[str, Any]) -> Answer:
    [answer] = ask(made, question)
    return answer


def count(holds: Callable[[Row], bool]) -> int:
    """Return the true number of rows for which a condition holds."""
    return sum(map(holds, TABLE))


def count_of(**values: Any) -> int:
    """Return the true number of rows with these values."""
    return count(lambda row: all(row[name] == value for name, value in values.items()))


def plan(made: Driver) -> Any:
    return made.grant("people", "s").calibration


OLD = {"where": "age >= 3", "alpha": 40.0}

# Laplace


def test_price_falls_with_a_looser_error_and_rises_with_a_tighter() -> None:
    """An ordinary answer is the reference."""
    made = driver(laplace())
    ordinary = plan(made).alpha
    each = plan(made).epsilon_answer
    loose, tight = ask(
        made, {"where": "age >= 3", "alpha": 4 * ordinary}, {"where": "age >= 3", "alpha": ordinary / 4}
    )
    assert loose.spent is not None
    assert tight.spent is not None
    assert loose.price == pytest.approx(loose.spent.epsilon)
    assert 0.0 < loose.spent.epsilon < each / 3
    assert 3 * each < tight.spent.epsilon - loose.spent.epsilon < 5 * each
    for answer, alpha in ((loose, 4 * ordinary), (tight, ordinary / 4)):
        assert (answer.outcome, answer.basis) == ("answer", "noisy")
        assert answer.alpha is not None
        assert 0.9 * alpha - 1.0 < answer.alpha <= alpha
    assert tight.tops_left == 6


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("question", "alpha"),
    [
        ({"where": "age >= 3"}, 90.0),
        ({"sum": "age", "where": "sex = 'F'"}, 3000.0),
        ({"group_by": ["sex", "town"]}, 150.0),
        ({"where": "sex = 'F'", "fraction": True}, 0.01),
    ],
)
def test_answers_of_every_priced_form_keep_to_their_alpha(
    question: dict[str, Any], alpha: float, neighbors: str
) -> None:
    made = driver(laplace(100, epsilon=20.0), neighbors=neighbors)
    answer = only(made, {**question, "alpha": alpha})
    if "fraction" in question and neighbors == "add-remove":
        assert answer.outcome == "rejected"
        assert "share's error depends on the number of rows" in (answer.reason or "")
        return
    assert answer.outcome == "answer"
    assert answer.alpha is not None
    assert 0.0 < answer.alpha <= alpha
    truths: Any = {
        "sum": [sum(row["age"] for row in TABLE if row["sex"] == "F")],
        "group_by": [count_of(sex=sex, town=town) for sex in SEXES for town in range(TOWNS)],
        "fraction": [count_of(sex="F") / ROWS],
        "where": [count(lambda row: row["age"] >= 3)],
    }
    form = next(name for name in ("sum", "group_by", "fraction", "where") if name in question)
    estimates = answer.estimates if answer.estimates is not None else (answer.estimate or 0.0,)
    assert max(abs(one - true) for one, true in zip(estimates, truths[form], strict=True)) <= alpha


def test_question_beyond_the_grant_is_refused_with_its_price() -> None:
    """It is charged nothing."""
    made = driver(laplace(2))
    first = only(made, {"where": "age >= 3", "alpha": 0.5})
    assert (first.outcome, first.spent, first.index) == ("rejected", None, None)
    assert first.reason is not None
    assert first.reason.startswith("price: alpha: it costs ε = ")
    assert first.price is not None
    assert f"ε = {first.price:.6g}, and ε = 1 is left" in first.reason
    assert made.grant("people", "s").spent.epsilon == 0.0
    assert made.records(made.topics.rejected) == []
    after = only(made, {"where": "age >= 3"})
    assert (after.index, after.tops_left) == (0, 1)


def test_rest_of_a_grant_pays_for_cheaper_answers() -> None:
    """The rest is less than an ordinary answer costs."""
    made = driver(laplace(2))
    ordinary = plan(made).alpha
    loose = {"where": "age >= 3", "alpha": 3 * ordinary}
    answers = ask(made, loose, {"where": "age >= 4"}, {"where": "age >= 4"}, loose, *[loose] * 9)
    assert [answer.outcome for answer in answers[:4]] == ["answer", "answer", "rejected", "answer"]
    assert "price: query: it costs ε = 0.5, and ε = 0.28" in (answers[2].reason or "")
    assert answers[1].tops_left == 0
    last = [answer for answer in answers if answer.spent is not None][-1]
    assert last.spent is not None
    assert last.spent.epsilon <= 1.0
    assert answers[-1].outcome == "rejected"
    grant = made.grant("people", "s")
    assert (grant.state, grant.spent) == ("exhausted", last.spent)
    assert grant.tops == sum(answer.outcome == "answer" for answer in answers)
    made.close("people", "s")
    back = made.grant("people", "s")
    assert back.refunded.epsilon == pytest.approx(1.0 - last.spent.epsilon)


def test_stream_without_an_ordinary_charge_left_is_exhausted() -> None:
    """It is shown as exhausted and raises Exhausted, still answers cheaper questions, and is open again after an extension."""
    made = driver(laplace(10))
    assert made.ask("s", where="age >= 3", alpha=5.0).price
    while made.list_streams("people")[0].state == "open":
        made.ask("s", where="age >= 3")
    left = 1.0 - made.grant("people", "s").spent.epsilon
    assert 0.0 < left < 0.1
    assert [one.state for one in made.list_streams("people")] == ["exhausted"]
    with pytest.raises(Exhausted, match="price: query: it costs"):
        made.ask("s", where="age >= 3")
    assert made.ask("s", where="age >= 3", alpha=1e3).outcome == "answer"
    made.extend("people", "s", 1.0)
    assert made.grant("people", "s").state == "open"
    assert made.ask("s", where="age >= 3").outcome == "answer"


def test_grant_that_is_spent_to_the_last_part_is_exhausted() -> None:
    made = driver(laplace(1))
    least = {"where": "age >= 3", "alpha": plan(made).alpha}
    price = only(made, {**least, "alpha": 1e15}).price
    assert price is not None
    assert price <= 2 / PARTS_PER_CHARGE
    answers = ask(made, least, *[{**least, "alpha": 1e15}] * 3000)
    assert answers[0].outcome == "answer"
    assert {answer.outcome for answer in answers} <= {"answer", "rejected", "halted"}
    assert made.grant("people", "s").state == "exhausted"


def test_stream_with_delta_gives_only_ordinary_answers() -> None:
    made = driver(laplace(1000, delta=1e-5, expected_queries=1000))
    ordinary = plan(made).alpha
    assert plan(made).delta > 0
    loose, tight = ask(
        made, {"where": "age >= 3", "alpha": 2 * ordinary}, {"where": "age >= 3", "alpha": ordinary / 2}
    )
    assert (loose.outcome, loose.alpha, loose.tops_left) == ("answer", ordinary, 999)
    assert tight.outcome == "rejected"
    assert "all answers of a stream with delta above 0 cost the same" in (tight.reason or "")


def test_tight_error_under_zcdp_is_charged_by_rho() -> None:
    pure, zcdp = (
        driver(laplace(100, epsilon=2.0), accountant=accountant, epsilon=50.0) for accountant in ("pure", "zcdp")
    )
    tight = {"where": "age >= 3", "alpha": plan(pure).alpha / 3}
    one, other = only(pure, tight), only(zcdp, tight)
    assert one.tops_left is not None
    assert other.tops_left is not None
    assert other.tops_left < one.tops_left - 3


# Multiplicative weights


def test_error_that_the_estimate_keeps_is_free() -> None:
    made = driver(pmw(mechanism={"warm_start": 1}))
    promise = plan(made).alpha
    # The first question also pays for the opening.
    _, answer = ask(made, {"where": "age >= 4", "alpha": 2 * promise}, {"where": "age >= 3", "alpha": 2 * promise})
    assert (answer.basis, answer.price, answer.tops_left) in {
        ("hypothesis", 0.0, plan(made).cutoff),
        ("measured", 0.0, plan(made).cutoff),
    }
    assert answer.alpha is not None
    assert answer.alpha <= 2 * promise


def test_looser_errors_cause_fewer_tops() -> None:
    questions = [{"where": f"age >= {age} AND town = {town}"} for age in range(1, 9) for town in range(TOWNS)]
    tops = {}
    for factor in (1.0, 6.0):
        made = driver(pmw(epsilon=2.0))
        promise = plan(made).alpha
        tops[factor] = sum(
            answer.basis == "noisy"
            for answer in ask(made, *({**one, "alpha": factor * promise} for one in questions))
        )
    assert tops[6.0] < tops[1.0]


def test_tighter_error_is_measured_for_the_least_charge() -> None:
    """Later questions about it are free."""
    made = driver(pmw())
    promise, cutoff = plan(made).alpha, plan(made).cutoff
    question = {"where": "age >= 3 AND sex = 'F'"}
    alpha = promise / 3
    first = only(made, {**question, "alpha": alpha})
    assert first.basis == "noisy"
    assert first.alpha is not None
    assert 0.95 * alpha < first.alpha <= alpha
    assert abs((first.estimate or 0.0) - count(lambda row: row["age"] >= 3 and row["sex"] == "F")) <= alpha
    assert first.price is not None
    assert first.price > 0.0
    for wanted in (alpha, 2 * alpha, None):
        again = only(made, {**question, **({} if wanted is None else {"alpha": wanted})})
        assert again.basis == "measured"
        assert again.price == (None if wanted is None else 0.0)
        assert again.spent == first.spent
    tighter = only(made, {**question, "alpha": alpha / 2})
    assert tighter.basis == "noisy"
    assert tighter.tops_left is not None
    assert tighter.tops_left < cutoff


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("question", "alpha"),
    [
        ({"where": "age = 2 AND sex = 'F' AND town = 2"}, 20.0),
        ({"terms": [{"where": "age < 4", "weight": 0.5}, {"where": "sex = 'F'", "weight": 0.25}]}, 30.0),
        ({"sum": "age", "where": "sex = 'F'"}, 900.0),
        ({"group_by": ["town", "sex"]}, 30.0),
        ({"group_by": ["town"], "where": "sex = 'F'"}, 30.0),
        ({"group_by": ["town"], "where": "age < 5"}, 30.0),
        ({"where": "age >= 3", "fraction": True}, 0.01),
    ],
)
def test_every_form_of_an_estimate_keeps_its_alpha_across_crashes(
    question: dict[str, Any], alpha: float, neighbors: str
) -> None:
    made = driver(pmw(), neighbors=neighbors)
    wanted = {**question, "alpha": alpha}
    answer = only(made, wanted)
    if "fraction" in question and neighbors == "add-remove":
        assert answer.outcome == "rejected"
        return
    assert (answer.outcome, answer.basis) == ("answer", "noisy"), answer.reason
    assert answer.alpha is not None
    assert answer.alpha <= alpha
    spent = answer.spent
    before = only(made, {"where": "age >= 2 AND town = 1"})
    made.redeliver()
    made.crash()
    again = only(made, wanted)
    assert (again.basis, again.price) == ("measured", 0.0)
    assert again.alpha is not None
    assert 0.98 * answer.alpha <= again.alpha <= alpha
    assert again.spent == before.spent != spent or before.basis != "noisy"


def test_paid_number_is_the_answer_of_later_questions() -> None:
    """The estimate is not fitted to a number that was measured alone, and may be far outside of its interval."""
    made = driver(pmw())
    question = {"where": "age >= 3 AND town = 1 AND sex = 'F'"}
    paid = only(made, {**question, "alpha": 8.0})
    assert (paid.basis, paid.alpha) == ("noisy", 8.0)
    for asked in (question, {**question, "alpha": 30.0}):
        again = only(made, asked)
        assert (again.basis, again.interval, again.price or 0.0) == ("measured", paid.interval, 0.0)
        assert again.interval is not None
        low, high = again.interval
        assert low <= (again.estimate or 0.0) <= high


def test_measured_groups_join_the_estimate() -> None:
    made = driver(pmw())
    only(made, {"group_by": ["town", "sex"], "alpha": 25.0})
    for town in range(TOWNS):
        answer = only(made, {"where": f"town = {town} AND sex = 'F'"})
        assert answer.basis == "measured"
        assert abs((answer.estimate or 0.0) - count_of(town=town, sex="F")) <= (answer.alpha or 0.0)


def test_stream_without_a_top_left_answers_within_its_budget() -> None:
    made = driver(pmw(mechanism={"updates": 2, "beyond": "end"}))
    promise = plan(made).alpha
    first = only(made, {"where": "age = 3 AND town = 1", "alpha": promise / 4})
    while first.tops_left:
        first = only(made, {"where": f"age = {first.index} AND town = 2", "alpha": promise / 3})
    assert first.tops_left == 0
    plain = only(made, {"where": "age >= 7 AND town = 4"})
    assert plain.outcome == "rejected"
    assert "price: query: it costs" in (plain.reason or "")
    loose = only(made, {"where": "age >= 7 AND sex = 'F'", "alpha": 20 * promise})
    assert (loose.outcome, loose.basis) == ("answer", "noisy")
    assert loose.price is not None
    assert plain.price is not None
    assert loose.price < plain.price / 4


def test_exhausted_pmw_answers_unpromised_and_refuses_accuracy() -> None:
    """After its tops, answers have no promise; a tight alpha is refused."""
    made = driver(pmw(mechanism={"updates": 1, "beyond": "unpromised"}))
    promise = plan(made).alpha
    only(made, {"where": "age = 3 AND town = 1", "alpha": promise / 3})
    plain = only(made, {"where": "age >= 7 AND town = 4"})
    assert (plain.outcome, plain.alpha) == ("answer", None)
    tight = only(made, {"where": "age >= 7 AND town = 4", "alpha": promise / 50})
    assert (tight.outcome, (tight.reason or "")[:12]) == ("rejected", "price: alpha")


def test_changelog_has_the_question_and_its_share() -> None:
    made = driver(pmw())
    only(made, {"group_by": ["town"], "where": "age < 5", "alpha": 30.0})
    [record] = [one for one in made.records(made.topics.state) if (one.key or b"").startswith(UPDATE_PREFIX)]
    kept = json.loads(record.value or b"")
    assert kept["group_by"] == ["town"]
    assert kept["terms"] == [{"where": "age < 5"}]
    assert 0 < kept["share"] < PARTS_PER_CHARGE


def test_price_is_refused_before_the_charge_by_public_sizes() -> None:
    """The refusal of a first question is the same over any table."""
    answers = []
    for rows in (PEOPLE, {name: values[:10] for name, values in PEOPLE.items()}):
        made = Driver(KEY, partitions=1)
        attributes = {"age": AGES, "sex": list(SEXES), "town": TOWNS}
        made.register(
            source("people", "table", path="-", attributes=attributes),
            rows,
        )
        made.open(pmw())
        answers.append(only(made, {"where": "age >= 3", "alpha": 0.001}))
    assert answers[0] == answers[1]
    assert answers[0].outcome == "rejected"


# Questions without alpha, and invalid alphas


@pytest.mark.parametrize("kind", ["laplace", "pmw"])
@pytest.mark.parametrize("form", ["variance", "stddev"])
def test_variance_refuses_an_alpha_in_its_own_words(kind: str, form: str) -> None:
    made = driver(laplace() if kind == "laplace" else pmw())
    answer = only(made, {form: "age", "alpha": 3.0})
    assert answer.outcome == "rejected"
    assert answer.reason == (
        "malformed: alpha: the error of this question depends on private numbers; remove it, and read the interval of the "
        "answer"
    )


@pytest.mark.parametrize("kind", ["laplace", "pmw"])
def test_mean_refuses_an_alpha_and_names_another_question(kind: str) -> None:
    made = driver(laplace() if kind == "laplace" else pmw())
    answer = only(made, {"mean": "age", "alpha": 3.0})
    assert answer.outcome == "rejected"
    assert answer.reason == (
        "malformed: alpha: a mean's error depends on how many rows it is over; ask for the sum and the count, each with its "
        "own alpha"
    )


@pytest.mark.parametrize(
    ("mechanism", "question"),
    [
        ({"kind": "pmw", "attributes": ["sex"], "worst_case": True, "rows": 6000}, {"where": "sex = 'F'"}),
        ({"kind": "above_threshold", "threshold": 5.0, "cutoff": 1}, {"where": "sex = 'F'"}),
        ({"kind": "numeric_sparse", "threshold": 5.0, "cutoff": 1}, {"where": "sex = 'F'"}),
        ({"kind": "histogram", "attributes": ["sex"]}, {"where": "sex = 'F'"}),
        ({"kind": "lazy_histogram", "attributes": ["sex"], "sparsity": 1}, {"cells": [{"at": {"sex": "F"}}]}),
        ({"kind": "noisy_max", "answers": 1}, {"candidates": [{"name": "F", "where": "sex = 'F'"}]}),
    ],
)
def test_mechanisms_with_fixed_prices_refuse_an_alpha(mechanism: dict[str, Any], question: dict[str, Any]) -> None:
    made = driver({**laplace(), "mechanism": mechanism, "epsilon": 20.0})
    answer = only(made, {**question, "alpha": 10.0})
    assert answer.outcome == "rejected"
    assert (answer.reason or "").startswith("malformed: alpha: this stream takes no requested error")
    assert only(made, question).outcome != "rejected"


def test_textbook_pmw_refuses_an_alpha() -> None:
    made = driver(
        {**pmw(mechanism={"rows": 6000, "warm_start": "auto"}), "calibration": "textbook", "epsilon": 100.0}
    )
    assert (only(made, {"where": "sex = 'F'", "alpha": 10.0}).reason or "").startswith(
        "malformed: alpha: this stream"
    )


@pytest.mark.parametrize("kind", ["laplace", "above_threshold"])
def test_feeds_of_values_refuse_an_alpha(kind: str) -> None:
    made = driver()
    made.register(source())
    mechanism = {"kind": kind, **({"answers": 2} if kind == "laplace" else {"threshold": 1.0, "cutoff": 1})}
    made.open(stream("s", mechanism=mechanism), acknowledge=True)
    answer = only(made, {"value": 3.0, "alpha": 10.0})
    assert (answer.reason or "").startswith("malformed: alpha: this stream takes no requested error")


@pytest.mark.parametrize("alpha", ["0", "-3", "1e400", '"5"', "1e16", "true"])
def test_invalid_alpha_is_refused_by_its_field(alpha: str) -> None:
    made = driver(laplace())
    [answer] = made.ask_many([f'{{"id": "a", "stream": "s", "where": "age > 1", "alpha": {alpha}}}'.encode()])
    assert answer.outcome == "rejected"
    assert (answer.reason or "").startswith("malformed: ")
    assert "alpha" in (answer.reason or "")


def test_alpha_of_nan_is_refused_by_its_field() -> None:
    made = driver(laplace())
    [answer] = made.ask_many([b'{"id": "a", "stream": "s", "where": "age > 1", "alpha": NaN}'])
    assert answer.reason == "malformed: alpha: is not a finite number; give one"
    [letter] = made.records(made.topics.rejected)
    assert letter.value is not None


def test_noisy_fraction_of_a_row_is_cheaper_than_a_marginal() -> None:
    cell = {"where": "age = 2 AND sex = 'F' AND town = 2"}
    whole, finer = (only(driver(pmw()), {**cell, "alpha": alpha}) for alpha in (4.0, 4.9))
    assert whole.estimate == round(whole.estimate or 0.0)
    assert finer.estimate != round(finer.estimate or 0.0)
    assert whole.price is not None
    assert finer.price is not None
    assert finer.price < whole.price


# Output of the commands


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        (["--mechanism", "laplace", "--cutoff", "10", "--grid", "1"], laplace()),
        (["--mechanism", "laplace", "--cutoff", "10"], laplace()),  # the grid of values does not matter to a count
        (
            ["--mechanism", "pmw", "--sizes", f"{AGES},2,{TOWNS}", "--warm-start", "0"],
            pmw(epsilon=1.0, expected_queries=1000),
        ),
    ],
)
@pytest.mark.parametrize("alpha", [10.0, 60.0])
def test_planned_price_equals_the_charge(options: list[str], opened: dict[str, Any], alpha: float) -> None:
    made = driver({**opened, "expected_queries": 1000})
    result = CliRunner().invoke(
        app, ["plan", "--epsilon", "1", "--queries", "1000", "--alpha", str(alpha), "--json", *options]
    )
    planned = json.loads(result.stdout)["question"]
    assert planned["alpha"] == alpha
    # The first question also pays for the opening of pmw.
    _, answer = ask(
        made, {"where": "age >= 1", "alpha": 1000.0}, {"where": "age >= 3 AND sex = 'F'", "alpha": alpha}
    )
    assert answer.price == planned["epsilon"]
    assert (answer.outcome == "answer") == planned["affordable"]


def test_simulation_reports_charges_and_errors_beyond_the_wanted() -> None:
    people = driver().list_sources()[0].source
    questions = {
        line: Query.model_validate(
            {"id": str(line), "stream": "s", "where": f"age >= {line}", "alpha": 30.0 * line}
        )
        for line in range(1, 9)
    }
    report = simulate(parse_stream(laplace(4)), people, questions, pl.DataFrame(PEOPLE), runs=2)
    assert report.broken_runs == 0
    for run in report.runs:
        assert run.answered + len(run.rejections) == 8
        assert run.answered > 4
        assert run.charged is not None
        assert run.charged <= 4
        assert all(reason.startswith("price: ") for reason in run.rejections.values())


# Exactly once


@pytest.mark.parametrize("kind", ["laplace", "pmw"])
def test_priced_answers_survive_redelivery_and_restore(kind: str) -> None:
    """Any mix of questions with and without an alpha gets the same bytes."""
    made = driver(laplace(40) if kind == "laplace" else pmw())
    mixed: list[dict[str, Any]] = [
        {
            "where": f"age >= {place % 7} AND town = {place % TOWNS}",
            **({"alpha": 20.0 * place} if place % 3 else {}),
        }
        for place in range(1, 25)
    ]
    ask(made, *mixed[:9])
    made.redeliver()
    made.crash()
    ask(made, *mixed[9:])
    made.redeliver()
    figures = made.snapshot_streams()
    made.crash()
    assert made.snapshot_streams() == figures
    grant = made.grant("people", "s")
    assert grant.surplus == figures["s"][-1] != 0
    one_batch, one_by_one = (driver(laplace(40) if kind == "laplace" else pmw()) for _ in range(2))
    together = ask(one_batch, *mixed)
    apart = [one_by_one.ask_many([{"id": str(place), "stream": "s", **one}])[0] for place, one in enumerate(mixed)]
    assert together == apart


def test_same_question_with_another_error_has_other_noise() -> None:
    """An observer can compare two published numbers: if their noise were one scaled draw, the true number would follow."""
    noise = []
    for alpha in (100.0, 50.0):
        made = driver(pmw())
        answer = only(made, {"where": "age >= 3 AND sex = 'F'", "alpha": alpha})
        noise.append(((answer.estimate or 0.0) - count(lambda row: row["age"] >= 3 and row["sex"] == "F")) / alpha)
    assert abs(noise[0] - noise[1]) > 1e-3


def test_ledger_refuses_forged_totals() -> None:
    made = driver(laplace(4))
    only(made, OLD)
    ledger = made._budget.ledger
    grant = made.grant("people", "s")
    for tops, surplus in (
        (grant.tops, grant.surplus - 1),
        (grant.tops + 1, grant.surplus - PARTS_PER_CHARGE),
        (9, 0),
    ):
        with pytest.raises(RefusedError):
            ledger.record_charge(
                "people", "s", grant.identity.incarnation, answered=20, tops=tops, surplus=surplus, state="open"
            )
