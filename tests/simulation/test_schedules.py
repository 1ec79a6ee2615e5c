"""Some hundred schedules in every run of the tests; ``make chaos`` runs any number."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from tests.chaos.load import MIXED
from tests.simulation.events import UPSETS
from tests.simulation.faults import STRIKES
from tests.simulation.mutations import SCHEDULES
from tests.simulation.schedule import play


@pytest.fixture(scope="module")
def injected() -> Counter[str]:
    """The injected faults of all schedules; each schedule must keep every promise."""
    reports = [play(seed) for seed in range(SCHEDULES)]
    broken = [str(report) for report in reports if report.violations]
    assert not broken, "\n".join(broken)
    return sum((report.injected + report.figures for report in reports), Counter())


def test_every_schedule_answers_charges_and_restores_once(injected: Counter[str]) -> None:
    lines = [f"{times:7}  {name}" for name, times in sorted(injected.items())]
    print("\n".join([f"{SCHEDULES} schedules, no violation; injected:", *lines]))  # noqa: T201
    assert injected["questions"] > 20 * SCHEDULES


def test_every_fault_and_every_end_of_a_transaction_occurs(injected: Counter[str]) -> None:
    upsets = [upset.__name__.strip("_").replace("_", " ") for upset in UPSETS]
    assert all(
        injected[name] >= 10
        for name in [*STRIKES, *upsets, "failing event", "query published twice", "clock ahead"]
    )
    assert injected["opening repeated after a retirement"] > 5
    on_tables = {mechanism["kind"] for source, mechanism in MIXED.values() if source == "people"}
    assert all(injected[f"{kind} after a refresh"] > 5 for kind in on_tables - RESULTS_KEPT_BY_MECHANISM.keys())
    assert all(injected[name] >= 10 for name in ["halt request", "close request", "opening repeated after a halt"])
    assert min(injected["greedy stream"], injected["retired stream"]) > 10
    assert min(injected["extension"], injected["answers beyond the opening"]) > 10
    assert 10 < injected["busy"] < injected["questions"] / 2
    assert min(injected["aborted"], injected["expired"], injected["fenced"]) > 10


def test_seed_replays_the_same_run_in_another_process() -> None:
    script = "from tests.simulation.schedule import play; print(play(11).digest, play(12).digest)"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.split() == [play(11).digest, play(12).digest]
    assert play(11).digest != play(12).digest
