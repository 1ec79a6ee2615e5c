"""Populations, allotments and a renewing budget work in a real installation, even after the budget service is killed."""

from __future__ import annotations

import asyncio

import pytest

from sotto import Client, Refused, Settings, Unknown
from tests.builders import source, stream
from tests.conftest import StartService

pytestmark = pytest.mark.kafka

FEED = source(epsilon=5.0)
WARD = stream("ward", mechanism={"cutoff": 100})


def register_shared_budgets(settings: Settings) -> None:
    """Register two sources of one population, and an analyst with an allotment of its budget."""
    with Client(settings) as client:
        receipt = client.register_population({"population": "patients", "epsilon": 3.0, "renews": "30d"})
        assert "privacy is per period, not for ever" in (receipt.meaning or "")
        client.register({**FEED, "population": "patients"})
        client.register({**FEED, "source": "visits"})
        client.open({**WARD, "stream": "early", "source": "visits"})
        client.join("visits", "patients")
        client.allot("study", 1.5, population="patients", analysts=["ada", "bob"])
        client.open(WARD, analyst="ada")
        with pytest.raises(Refused, match="allotment 'study' on population 'patients' cannot pay"):
            client.open({**WARD, "stream": "more", "source": "visits"}, analyst="bob")


def check_after_restart(settings: Settings) -> None:
    """Check that a newly started budget service has forgotten nothing."""
    with Client(settings) as client:
        with pytest.raises(Refused, match=r"population 'patients' cannot pay: ε = 2 asked, ε = 1 left"):
            client.open({**WARD, "stream": "dear", "epsilon": 2.0})
        with pytest.raises(Refused, match="analyst 'eve' has no allotment on population 'patients'"):
            client.open({**WARD, "stream": "of-eve", "epsilon": 0.1}, analyst="eve")
        client.open({**WARD, "stream": "last"})
        people = client.population("patients")
        assert (people.granted.epsilon, people.left.epsilon, people.sources, people.streams) == (3.0, 0.0, 2, 3)
        assert people.period is not None
        assert people.period.number == 1
        # The period begins at the broker's timestamp of the registration, and has thirty days.
        assert people.period.ends - people.period.starts == 30 * 24 * 3_600_000
        assert people.period.starts > 1_600_000_000_000
        [allotment] = client.list_allotments(population="patients")
        assert (allotment.analysts, allotment.left.epsilon) == (("ada", "bob"), 0.5)
        assert client.grant("feed", "ward").analyst == "ada"
        assert [one.population.population for one in client.list_populations()] == ["patients"]
        assert {one.population for one in client.list_sources()} == {"patients"}
        with pytest.raises(Unknown, match="population 'nobody' is not registered"):
            client.population("nobody")


async def test_populations_and_allotments_survive_kill_of_budget_service(
    settings: Settings, start: StartService
) -> None:
    first = start("budget")
    await asyncio.to_thread(register_shared_budgets, settings)
    first.kill()
    start("budget")
    await asyncio.to_thread(check_after_restart, settings)
