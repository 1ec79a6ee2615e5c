"""Sources over the same people share a budget: a grant is charged to the source and to the population at once, or to neither."""

from __future__ import annotations

from typing import Any

import pytest

from sotto import Driver, Refused, Rejected
from tests.builders import KEY, installation, source, stream
from tests.unit.installation import HIGH, spec

PATIENTS: dict[str, Any] = {"population": "patients", "epsilon": 3.0}


def driver_with(*sources: str, **population: Any) -> Driver:
    """Return a driver with the population, and with sources of ε = 2 that belong to it."""
    driver = Driver(KEY, partitions=1)
    driver.register_population({**PATIENTS, **population})
    for name in sources:
        driver.register(source(name, epsilon=2.0, population="patients"))
    return driver


def granted_to_patients(driver: Driver) -> float:
    record = driver.population("patients")
    return record.granted.epsilon - record.refunded.epsilon


def test_sources_of_one_population_cannot_exceed_its_budget() -> None:
    driver = driver_with("wards", "visits")
    driver.open(spec("a", "wards", epsilon=2.0))
    with pytest.raises(Refused, match=r"population 'patients' cannot pay: ε = 1\.5 asked, ε = 1 left") as refused:
        driver.open(spec("b", "visits", epsilon=1.5))
    assert refused.value.asked is not None
    assert refused.value.left is not None
    assert (refused.value.asked.epsilon, refused.value.left.epsilon) == (1.5, 1.0)
    driver.open(spec("b", "visits", epsilon=1.0))
    record = driver.population("patients")
    assert (record.granted.epsilon, record.left.epsilon, record.sources, record.streams) == (3.0, 0.0, 2, 2)
    assert driver.budget("visits").left.epsilon == 1.0


def test_refusal_names_the_source_or_the_population() -> None:
    driver = driver_with("wards", epsilon=5.0)
    with pytest.raises(Refused, match=r"source 'wards' cannot pay: ε = 2\.5 asked, ε = 2 left"):
        driver.open(spec("a", "wards", epsilon=2.5))
    assert granted_to_patients(driver) == driver.budget("wards").granted.epsilon == 0.0


def test_closed_stream_refunds_both_source_and_population() -> None:
    driver = driver_with("wards")
    driver.open(spec("a", "wards", epsilon=2.0, cutoff=4))
    driver.ask("a", value=HIGH)
    driver.close("wards", "a")
    source, people = driver.budget("wards"), driver.population("patients")
    assert 0.0 < people.spent.epsilon < 2.0
    assert (people.granted, people.spent, people.refunded) == (source.granted, source.spent, source.refunded)
    assert people.left.epsilon == pytest.approx(3.0 - people.spent.epsilon)


def test_extension_is_charged_to_both_or_neither() -> None:
    driver = driver_with("wards", "visits")
    driver.open(spec("a", "wards", epsilon=1.0, cutoff=4))
    driver.open(spec("b", "visits", epsilon=1.5))
    with pytest.raises(Refused, match="population 'patients' cannot pay"):
        driver.extend("wards", "a", 1.0)
    assert driver.budget("wards").granted.epsilon == 1.0
    driver.extend("wards", "a", 0.5)
    assert granted_to_patients(driver) == pytest.approx(1.5 + driver.grant("wards", "a").cost.epsilon)


def test_source_joins_a_population_only_if_its_grants_fit() -> None:
    driver = driver_with("wards")
    driver.register(source("visits", epsilon=2.0))
    driver.open(spec("a", "wards", epsilon=1.5))
    driver.open(spec("b", "visits", epsilon=2.0, cutoff=4))
    with pytest.raises(Refused, match=r"population 'patients' cannot pay: ε = 2 asked, ε = 1\.5 left"):
        driver.join("visits", "patients")
    assert driver.budget("visits").population is None
    driver.ask("b", value=HIGH)
    driver.close("visits", "b")
    receipt = driver.join("visits", "patients")
    assert (receipt.outcome, receipt.source, receipt.population) == ("registered", "visits", "patients")
    assert driver.budget("visits").population == "patients"
    assert driver.population("patients").spent == driver.budget("visits").spent
    before = driver.population("patients")
    assert driver.join("visits", "patients").outcome == "registered"
    assert driver.population("patients") == before


def test_source_belongs_to_one_population_for_good() -> None:
    driver = driver_with("wards")
    driver.register_population({**PATIENTS, "population": "staff"})
    with pytest.raises(Refused, match="'wards' belongs to population 'patients' permanently"):
        driver.join("wards", "staff")


def test_sources_with_different_neighbors_do_not_add_up() -> None:
    driver = driver_with("wards")
    table = source("people", "table", population="patients")
    with pytest.raises(Refused, match="but source 'wards' of population 'patients' has 'replace'"):
        driver.register(table, {"age": [1], "sex": ["F"]})
    driver.register({**table, "neighbors": "replace"}, {"age": [1], "sex": ["F"]})


def test_population_counts_by_its_own_accountant() -> None:
    driver = driver_with(accountant="zcdp", delta=1e-6, epsilon=1.0)
    driver.register(source("wards", population="patients"))
    driver.register(source("visits", population="patients", accountant="zcdp", delta=1e-5))
    driver.open(spec("a", "wards", epsilon=0.1))
    driver.open(spec("b", "visits", epsilon=0.1))
    record = driver.population("patients")
    assert record.granted.rho == pytest.approx(2 * 0.1**2 / 2)
    assert driver.budget("wards").granted.rho is None


WANTED_ERRORS: dict[str, Any] = stream(
    "a", "people", "laplace", mechanism={"answers": 100}, epsilon=2.0, expected_queries=100
)


def table_of_forty(driver: Driver, **more: Any) -> None:
    driver.register(source("people", "table", epsilon=10.0, **more), {"age": [30] * 40, "sex": ["F"] * 40})


@pytest.mark.parametrize("joins", ["before", "after"])
def test_answer_that_takes_a_whole_grant_counts_so_under_zcdp(joins: str) -> None:
    """One answer with all of ε = 2 has ρ = 2²/2, and not the 2²/200 of a hundred equal answers."""
    driver = Driver(KEY, partitions=1)
    driver.register_population({**PATIENTS, "epsilon": 1.0, "delta": 1e-6, "accountant": "zcdp"})
    table_of_forty(driver, **({"population": "patients"} if joins == "before" else {}))
    with pytest.raises(Refused, match=r"population 'patients' cannot pay: ρ = 2 \(ε = 2 added up\) asked"):  # noqa: PT012
        driver.open(WANTED_ERRORS)
        assert (driver.ask("a", where="age >= 18", alpha=2.0).price or 0.0) > 1.0
        driver.join("people", "patients")
    assert driver.population("patients").granted.rho == 0.0


def test_source_under_zcdp_prices_squares() -> None:
    """Its population counts answers of equal ε."""
    driver = Driver(KEY, partitions=1)
    driver.register_population({**PATIENTS, "epsilon": 2.0, "delta": 1e-6, "accountant": "zcdp"})
    table_of_forty(driver, population="patients", accountant="zcdp", delta=1e-6)
    driver.open(WANTED_ERRORS)
    assert driver.population("patients").granted.rho == pytest.approx(2.0**2 / 200)
    with pytest.raises(Rejected, match="alpha: it costs ε"):
        driver.ask("a", where="age >= 18", alpha=2.0)


def test_unknown_or_otherwise_registered_names_are_refused() -> None:
    driver = Driver(KEY, partitions=1)
    with pytest.raises(Refused, match="population 'patients' is not registered; register it first"):
        driver.register(source(population="patients"))
    driver.register(source())
    with pytest.raises(Refused, match="population 'patients' is not registered"):
        driver.join("feed", "patients")
    driver.register_population(PATIENTS)
    assert driver.register_population(PATIENTS).outcome == "registered"
    with pytest.raises(Refused, match="population 'patients' is registered with another definition"):
        driver.register_population({**PATIENTS, "epsilon": 4.0})


def test_crash_loses_no_population_and_no_allotment() -> None:
    driver = driver_with("wards", "visits")
    driver.allot("study", 1.0, population="patients", analysts=["ada", "bob"])
    driver.open(spec("a", "wards", epsilon=0.5), analyst="ada")
    driver.ask("a", value=HIGH)
    figures = (driver.list_populations(), driver.list_allotments(), driver.list_sources())
    accounts = driver._budget.ledger.accounts
    driver.crash()
    assert driver._budget.ledger.accounts == accounts
    assert (driver.list_populations(), driver.list_allotments(), driver.list_sources()) == figures
    with pytest.raises(Refused, match="allotment 'study' on population 'patients' cannot pay"):
        driver.open(spec("b", "visits", epsilon=0.6), analyst="bob")


# Tests of allotments.


def team() -> Driver:
    """Return an installation with a source of ε = 2; two analysts share ε = 1, and one of them may have 0.8 of it."""
    driver = installation(sources=[source(epsilon=2.0)])
    driver.allot("team", 1.0, source="feed", analysts=["ada", "bob"])
    driver.allot("ada", 0.8, source="feed")
    return driver


def allotments_left(driver: Driver) -> dict[str, float]:
    return {one.allotment: one.left.epsilon for one in driver.list_allotments(source="feed")}


def test_changed_allotment_keeps_its_analysts_unless_others_are_named() -> None:
    driver = team()
    for analysts, expected in (((), ("ada", "bob")), (("bob", "eve"), ("bob", "eve")), ((), ("bob", "eve"))):
        driver.allot("team", 0.5, source="feed", analysts=analysts)
        [found] = (one for one in driver.list_allotments(source="feed") if one.allotment == "team")
        assert (found.analysts, found.epsilon) == (expected, 0.5)


def test_analyst_is_bound_by_own_team_and_ceiling_allotments() -> None:
    driver = team()
    with pytest.raises(
        Refused, match=r"allotment 'ada' on source 'feed' cannot pay: ε = 0\.9 asked, ε = 0\.8 left"
    ):
        driver.open(spec("a", epsilon=0.9), analyst="ada")
    driver.open(spec("b", epsilon=0.6), analyst="bob")
    with pytest.raises(
        Refused, match=r"allotment 'team' on source 'feed' cannot pay: ε = 0\.5 asked, ε = 0\.4 left"
    ):
        driver.open(spec("a", epsilon=0.5), analyst="ada")
    driver.open(spec("a", epsilon=0.3), analyst="ada")
    assert allotments_left(driver) == pytest.approx({"team": 0.1, "ada": 0.5})
    assert driver.grant("feed", "a").analyst == "ada"
    driver.open(spec("rest", epsilon=1.1))
    with pytest.raises(Refused, match="source 'feed' cannot pay"):
        driver.open(spec("c", epsilon=0.05), analyst="ada")


def test_analyst_without_an_allotment_is_refused() -> None:
    """This holds if others have allotments; operators are not refused."""
    driver = team()
    with pytest.raises(Refused, match="analyst 'eve' has no allotment on source 'feed'"):
        driver.open(spec("a"), analyst="eve")
    driver.open(spec("a"))
    driver.register(source("free"))
    driver.open(spec("b", "free"), analyst="eve")


def test_extension_is_charged_to_the_analyst_who_opened() -> None:
    driver = team()
    driver.open(spec("a", epsilon=0.3), analyst="ada")
    with pytest.raises(
        Refused, match="stream 'a' was opened by analyst 'ada', and other analysts cannot extend it"
    ):
        driver.extend("feed", "a", 0.3, analyst="bob")
    driver.extend("feed", "a", 0.3)
    cost = driver.grant("feed", "a").cost.epsilon
    assert 0.4 < cost <= 0.6
    assert allotments_left(driver) == pytest.approx({"team": 1.0 - cost, "ada": 0.8 - cost})
    with pytest.raises(Refused, match="allotment 'ada' on source 'feed' cannot pay"):
        driver.extend("feed", "a", 0.7, analyst="ada")


def test_refund_frees_the_allotment() -> None:
    driver = team()
    driver.open(spec("a", epsilon=0.8), analyst="ada")
    driver.close("feed", "a")
    assert allotments_left(driver) == {"team": 1.0, "ada": 0.8}


def test_allotment_changes_but_not_below_the_counted_amount() -> None:
    driver = team()
    driver.open(spec("a", epsilon=0.5), analyst="ada")
    with pytest.raises(Refused, match=r"smaller than its analysts' present grants, ε = 0\.5"):
        driver.allot("ada", 0.4, source="feed")
    driver.allot("ada", 0.5, source="feed")
    assert allotments_left(driver)["ada"] == 0.0
    driver.allot("ada", 1.5, source="feed")
    before = driver.list_allotments()
    driver.allot("ada", 1.5, source="feed")
    assert driver.list_allotments() == before
    assert allotments_left(driver) == pytest.approx({"team": 0.5, "ada": 1.0})


def test_members_bring_their_grants_into_a_team() -> None:
    driver = team()
    driver.allot("eve", 1.0, source="feed")
    driver.open(spec("a", epsilon=0.9), analyst="eve")
    with pytest.raises(Refused, match="smaller than its analysts' present grants"):
        driver.allot("team", 0.5, source="feed", analysts=["ada", "bob", "eve"])
    driver.allot("team", 1.0, source="feed", analysts=["ada", "bob", "eve"])
    assert allotments_left(driver)["team"] == pytest.approx(0.1)


def test_allotment_on_a_population_holds_across_its_sources() -> None:
    driver = driver_with("wards", "visits")
    driver.allot("ada", 1.0, population="patients")
    driver.open(spec("a", "wards", epsilon=0.6), analyst="ada")
    with pytest.raises(Refused, match="allotment 'ada' on population 'patients' cannot pay"):
        driver.open(spec("b", "visits", epsilon=0.6), analyst="ada")
    [allotment] = driver.list_allotments(population="patients")
    assert (allotment.analysts, allotment.streams) == (("ada",), 1)
    assert allotment.left.epsilon == pytest.approx(0.4)


def test_repeated_request_about_budgets_is_done_once() -> None:
    driver = team()
    [request] = [
        one for one in driver.records(driver.topics.requests) if b'"allotment":"ada"' in (one.value or b"")
    ]
    driver.allot("ada", 0.2, source="feed")
    driver._append((driver.topics.requests, 0), b"feed", request.value or b"")
    driver._process_all()
    assert allotments_left(driver)["ada"] == 0.2
