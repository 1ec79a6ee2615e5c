"""Limits of a question's price: refusals and their prices do not depend on data."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from schemas import Answer, Query
from sotto import Driver
from stream.errors import Exhausted, Invalid, Rejected, describe_reason
from stream.privacy.mechanisms.estimator import Estimator
from stream.questions.question_forms import DEFAULT_MAX_PRICE, set_default_max_price
from stream.sql.result_tables import format_price
from tests.builders import KEY, source, stream

COUNT: dict[str, Any] = {"where": "age >= 3"}
TIGHT: dict[str, Any] = {**COUNT, "alpha": 5.0}


def installation(mechanism: dict[str, Any], *, rows: int = 1000, **spec: Any) -> Driver:
    """Open the stream ``s`` over a table of so many rows."""
    made = Driver(KEY, partitions=1)
    attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 9}, "sex": ["F", "M"]}
    table = pl.DataFrame({"age": [place % 10 for place in range(rows)], "sex": ["F"] * rows})
    made.register(source("people", "table", delta=1e-3, attributes=attributes), table)
    made.open(stream("s", "people", mechanism=mechanism, **spec))
    return made


def laplace(answers: int = 20, **more: Any) -> Driver:
    return installation({"kind": "laplace", "answers": answers}, **more)


def pmw(**more: Any) -> Driver:
    return installation({"kind": "pmw", "attributes": ["age", "sex"], "warm_start": 0}, epsilon=8.0, **more)


def ask(made: Driver, **question: Any) -> Answer:
    return made.ask("s", outcomes=True, **question)


@pytest.mark.parametrize("limit", ["10%", 0.1])
def test_laplace_refuses_a_price_above_max_price_and_charges_nothing(limit: float | str) -> None:
    """An alpha that costs ε 0.62 of a grant of 1 is rejected at a limit of 0.1 without a charge; the error has price and limit."""
    made = laplace()
    refused = ask(made, **TIGHT, max_price=limit)
    assert refused.outcome == "rejected"
    assert refused.price == pytest.approx(0.621, abs=1e-3)
    assert refused.reason == (
        f"price: max_price: the answer costs ε = {refused.price:.6g}, and the limit is 0.1; ask with a larger alpha or a "
        "larger max_price"
    )
    assert (refused.index, refused.spent) == (None, None)
    assert made.grant("people", "s").spent.epsilon == 0.0
    assert made.records(made.topics.rejected) == []
    # One of 20 answers is a part of ε 0.05, so a limit of 0.01 is not a whole number of its parts.
    assert "and the limit is 0.01;" in (ask(made, **COUNT, max_price=0.01).reason or "")
    # Neither number has an exponent, such as 9.9945e-05.
    assert "and the limit is 0.00009" in (ask(made, **COUNT, max_price=0.0001).reason or "")
    cheap = ask(made, **COUNT, alpha=300.0, max_price=limit)
    assert (cheap.outcome, cheap.index) == ("answer", 0)
    paid = ask(made, **TIGHT, max_price="100%")
    assert (paid.outcome, paid.price) == ("answer", refused.price)


@pytest.mark.parametrize("make", [laplace, pmw])
@pytest.mark.parametrize("question", [COUNT, TIGHT, {"group_by": ["sex"], "alpha": 2.0}, {"where": "sex = 'M'"}])
def test_price_refusals_are_the_same_for_every_table(make: Any, question: dict[str, Any]) -> None:
    """The refusal of a first question does not depend on the rows: it is the same for 3 rows and for 1,000."""
    answers = [ask(make(rows=rows), **question, max_price=0) for rows in (3, 1000)]
    assert [one.outcome for one in answers] == ["rejected", "rejected"]
    assert (answers[0].reason, answers[0].price) == (answers[1].reason, answers[1].price)


@pytest.mark.parametrize("make", [laplace, pmw])
def test_price_refusals_change_no_later_answer(make: Any) -> None:
    """Questions that are refused for their price do not change the numbers of other questions."""
    questions = [{"where": f"age >= {age}"} for age in (2, 5, 7)] + [{"where": "sex = 'F'", "alpha": 200.0}]
    plain, limited = make(), make()
    # Both logs have the same records, so that noise that is bound to an offset is the same.
    for made, limit in ((plain, None), (limited, 0)):
        fields: dict[str, Any] = {} if limit is None else {"max_price": limit}
        ask(made, **(TIGHT if limit is not None else {"where": "no such"}), **fields)
    answers = [
        [ask(made, id=str(place), **one) for place, one in enumerate(questions)] for made in (plain, limited)
    ]
    assert [one.model_dump() for one in answers[0]] == [one.model_dump() for one in answers[1]]


def test_pmw_at_a_limit_of_0_answers_measured_questions() -> None:
    """At a limit of 0, a measured question is answered, and a question that may be charged is refused."""
    made = pmw()
    tested = ask(made, where="age >= 2", max_price=0)
    assert tested.outcome == "rejected"
    assert "the answer may cost up to ε = " in (tested.reason or "")
    measured = ask(made, where="age >= 2", alpha=20.0)
    assert measured.price
    known = ask(made, where="age >= 2", alpha=20.0, max_price=0)
    assert (known.outcome, known.price) == ("answer", 0.0)


@pytest.mark.parametrize(("delta", "warm_start"), [(0.0, 2), (1e-4, 1)])
def test_pmw_limits_the_cost_of_the_opening_in_a_first_answer(delta: float, warm_start: int) -> None:
    """A first answer pays for the opening measurements: a dry run charges nothing, 50% refuses, and 100% does not."""
    mechanism = {"kind": "pmw", "attributes": ["age", "sex"], "warm_start": warm_start}
    made = installation(mechanism, epsilon=2.0, delta=delta)
    dry = ask(made, where="age >= 2", max_price=0)
    refused = ask(made, where="age >= 2", max_price="50%")
    assert [one.outcome for one in (dry, refused)] == ["rejected", "rejected"]
    assert "the first answer pays for the stream's first measurements, and the limit is 0" in (dry.reason or "")
    told = (
        f"limit is {'0%' if delta else '0'}, as in a dry run; nothing was charged; for an answer, raise max_price"
    )
    assert describe_reason(dry).endswith(told)
    assert describe_reason(refused) == refused.reason
    assert made.grant("people", "s").spent.epsilon == 0.0
    paid = ask(made, where="age >= 2", max_price="100%")
    assert paid.outcome == "answer"
    assert paid.spent is not None
    assert dry.price == (pytest.approx(paid.spent.epsilon, rel=1e-6) if delta == 0.0 else None)
    assert ask(made, where="age >= 2", max_price="50%").outcome == "answer"


def test_pmw_price_of_a_first_answer_includes_the_opening() -> None:
    """The price of a first answer with an alpha is what the stream has spent after it."""
    made = installation({"kind": "pmw", "attributes": ["age", "sex"]}, epsilon=2.0)
    first = ask(made, where="age >= 2 AND sex = 'F'", alpha=400.0)
    assert first.spent is not None
    assert first.price == pytest.approx(first.spent.epsilon, rel=1e-6)


def test_percentage_is_of_the_grant_at_opening() -> None:
    """A limit of 10% of a grant of 1 stays ε 0.1 after an extension by 1."""
    made = laplace()
    made.extend("people", "s", 1.0)
    assert "the limit is 0.1;" in (ask(made, **TIGHT, max_price="10%").reason or "")


def test_gaussian_answers_take_a_percentage_and_no_epsilon() -> None:
    """One of 100 answers with Gaussian noise is 1 % of the grant: 0.5% refuses it, 2% does not, and an ε is malformed."""
    made = laplace(100, delta=1e-6)
    assert made.grant("people", "s").calibration.method == "gaussian"
    refused = ask(made, **COUNT, max_price="0.5%").reason or ""
    assert "the answer costs 1% of the grant, and the limit is 0.5%" in refused
    assert "alpha" not in refused
    assert ask(made, **COUNT, max_price="2%").outcome == "answer"
    assert (ask(made, **COUNT, max_price=0.1).reason or "").startswith(
        "malformed: max_price: an answer with Gaussian noise"
    )


def test_refusal_before_the_first_charge_computes_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a refusal must not depend on measurements of a warm start that is not charged yet."""
    mechanism = {
        "kind": "pmw",
        "attributes": ["age", "sex"],
        "warm_start": "workload",
        "workload": [["age", "sex"]],
    }
    made = installation(mechanism, epsilon=8.0)
    monkeypatch.delattr(Estimator, "_answers_without_top")
    assert ask(made, **COUNT, max_price=0).outcome == "rejected"


def test_dry_run_gives_the_price_and_raises_other_refusals() -> None:
    """A dry run has the price of the later answer, and raises the usual errors of an invalid question."""
    made = laplace()
    price = made.ask("s", dry_run=True, **TIGHT).price
    assert made.grant("people", "s").spent.epsilon == 0.0
    assert made.ask("s", **TIGHT).price == price
    with pytest.raises(Rejected, match="predicate"):
        made.ask("s", dry_run=True, where="nothing = 3")


def test_limit_above_the_grant_is_refused_as_a_forgotten_percent_sign() -> None:
    """With `alpha` the question could take all that is left, although its user set a limit."""
    made = laplace()
    with pytest.raises(Invalid, match=r"max_price: 10 is above the stream's ε of \d.*, or a part such as '10%'"):
        made.ask("s", **TIGHT, max_price=10.0)
    assert made.grant("people", "s").answered == 0
    assert made.ask("s", **COUNT, max_price=10.0).outcome == "answer"


@pytest.mark.parametrize(
    ("mechanism", "question", "price", "later"),
    [
        ({"kind": "histogram", "attributes": ["sex"]}, COUNT | {"where": "sex = 'F'"}, 1.0, 0.0),
        ({"kind": "above_threshold", "threshold": 500, "cutoff": 3}, COUNT, 0.458666666667, 0.270666666667),
        ({"kind": "noisy_max", "answers": 4}, {"candidates": [{"name": "a", "where": "age = 1"}]}, 0.25, 0.25),
    ],
)
def test_dry_run_has_the_price_that_a_plan_fixes(
    mechanism: dict[str, Any], question: dict[str, Any], price: float, later: float
) -> None:
    """A stream whose answers all cost the same has a price too; a dry run charges nothing, and asks what is free."""
    made = installation(mechanism, rows=10_000)
    answer = made.ask("s", dry_run=True, **question)
    assert answer.is_priced
    assert answer.price == pytest.approx(price)
    with pytest.raises(Rejected, match=r"max_price: the answer .* and the limit is 10%"):
        made.ask("s", max_price="10%", **question)
    assert made.grant("people", "s").answered == 0
    assert made.ask("s", max_price=1.0, **question).outcome in {"answer", "above"}
    spent = made.grant("people", "s").spent
    again = made.ask("s", dry_run=True, **question)
    assert again.is_priced == (later > 0.0)
    assert (again.price or 0.0) == pytest.approx(later)
    assert made.grant("people", "s").spent == spent


@pytest.mark.parametrize("limit", [{"max_price": 0.5}, {"dry_run": True}])
def test_limited_question_names_the_end_of_its_stream(limit: dict[str, Any]) -> None:
    made = installation({"kind": "noisy_max", "answers": 1})
    candidates: dict[str, Any] = {
        "candidates": [{"name": "f", "where": "sex = 'F'"}, {"name": "m", "where": "sex = 'M'"}]
    }
    ask(made, **candidates)
    with pytest.raises(Exhausted, match="exhausted: the only answer of the grant is given"):
        made.ask("s", **candidates, **limit)


def test_dry_run_of_an_unknown_stream_is_the_usual_refusal() -> None:
    """A worker refuses the question if the ledger has no such stream."""
    with pytest.raises(Rejected, match="stream"):
        laplace().ask("other", dry_run=True, **COUNT)


def test_statement_without_an_epsilon_has_no_price_as_an_epsilon() -> None:
    """An answer with Gaussian noise costs a part of the grant, which is no sum of ε."""
    table = laplace(100, delta=1e-6).sql("SELECT COUNT(*) FROM s", max_price=0)
    assert table.price is None
    assert "1% of the grant" in format_price(table)


def test_statement_has_the_price_of_all_its_questions() -> None:
    """A statement at a limit of 0 costs nothing, and shows the price that it is charged without a limit."""
    made = laplace()
    asked = "SELECT COUNT(*), AVG(age) FROM s"
    price = made.sql(asked, max_price=0).price
    assert made.grant("people", "s").spent.epsilon == 0.0
    assert made.sql(asked, max_price="10%").epsilon == pytest.approx(price) == pytest.approx(0.1)
    with pytest.raises(Rejected, match="max_price: the answer costs"):
        made.sql(asked, max_price=0.01)


@pytest.mark.parametrize("limit", [-0.1, 1001.0, "ten", "101%", "-1%", "%", "1e1%", True])
def test_invalid_max_price_is_refused_by_its_field(limit: Any) -> None:
    """A limit is an ε from 0 to 1000 or a percentage; the refusal of any other limit says this."""
    with pytest.raises(Invalid, match="max_price: give an ε from 0 to 1000"):
        laplace().ask("s", **COUNT, max_price=limit)


@pytest.mark.parametrize(
    ("mechanism", "question"),
    [
        ({"kind": "above_threshold", "threshold": 5.0, "cutoff": 1}, COUNT),
        ({"kind": "histogram", "attributes": ["sex"]}, {"where": "sex = 'F'"}),
        ({"kind": "noisy_max", "answers": 1}, {"candidates": [{"name": "F", "where": "sex = 'F'"}]}),
    ],
)
def test_streams_of_one_price_refuse_max_price(mechanism: dict[str, Any], question: dict[str, Any]) -> None:
    """A worker accepts no max_price on a stream that accepts no alpha, and answers without one."""
    made = installation(mechanism, epsilon=8.0)
    [refused] = made.ask_many([{"stream": "s", **question, "max_price": 0.1}])
    assert (refused.reason or "").startswith("malformed: max_price: all charged answers")
    assert ask(made, **question).outcome != "rejected"


def test_clients_limit_questions_with_an_alpha_to_a_tenth_of_the_grant() -> None:
    """A client's question with an alpha has a default limit of 10%; other questions have none, and a dry run has 0."""
    plain = Query(id="a", stream="s", where="TRUE")
    tight = plain.model_copy(update={"alpha": 5.0})
    assert set_default_max_price(plain) == plain
    assert set_default_max_price(tight).max_price == DEFAULT_MAX_PRICE == "10%"
    assert set_default_max_price(tight.model_copy(update={"max_price": 0.5})).max_price == 0.5
