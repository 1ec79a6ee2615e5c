"""The OpenAPI document and the metrics."""

from __future__ import annotations

import re

import pytest
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from stream.monitor.api.openapi import build_document
from stream.monitor.api.routes import ANSWERS_PATH, ROUTES
from stream.monitor.api.service_models import MemberRow, PartitionRow, WorkersView
from stream.sql.aggregates import StatementError
from stream.sql.select_statements import parse_statement
from tests.unit.dev.test_asyncapi import references
from tests.unit.monitor.installation import HIGH, LOW, VIEWER, Installation, bearer, get, spec


async def test_openapi_document_is_valid_and_served() -> None:
    async with Installation().web() as client:
        served = await get(client, "/openapi.json")
    validate(served)
    assert served == build_document()


def test_openapi_document_has_every_route_with_its_role() -> None:
    paths = build_document()["paths"]
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        assert bool(operation["security"]) == (route.access is not None)
        assert ("401" in operation["responses"]) == (route.access is not None)
        assert operation.get("x-role") == route.access
        assert ("403" in operation["responses"]) == (
            route.access in {"analyst", "operator"} or route.path == ANSWERS_PATH
        )
        assert ("requestBody" in operation) == (route.body is not None)
    assert {"/metrics", "/openapi.json", "/api/events"} <= set(paths)


def test_openapi_references_have_targets() -> None:
    found = build_document()
    names = {reference.removeprefix("#/components/schemas/") for reference in references(found)}
    assert names
    assert names <= set(found["components"]["schemas"])


def test_openapi_lists_of_states_are_separated_by_commas() -> None:
    parameters = {one["name"]: one for one in build_document()["paths"]["/api/streams"]["get"]["parameters"]}
    assert (parameters["state"]["style"], parameters["state"]["explode"]) == ("form", False)
    assert parameters["limit"]["schema"]["maximum"] == 500


@pytest.fixture
def installation_with_history() -> Installation:
    installation = Installation()
    installation.open(spec("quiet"), spec("busy", cutoff=10), spec("ended"))
    for _ in range(9):
        installation.now += 20.0
        installation.ask("busy", LOW, HIGH)
    installation.driver.halt("feed", "ended")
    installation.driver.send(0, b"not json")
    installation.flow()
    partition = PartitionRow(
        role="worker",
        partition=0,
        member="worker-a-1",
        position=18,
        end=20,
        lag=2,
        events_per_second=0.1,
        restore=None,
    )
    lost = partition.model_copy(update={"partition": 1, "member": None, "lag": 5})
    member = MemberRow(
        member="worker-a-1", role="worker", host="127.0.0.1", partitions=[0], lag=2, events_per_second=0.1
    )
    installation.monitor.set_workers(
        WorkersView(time=installation.now, members=[member], partitions=[partition, lost])
    )
    return installation


async def metrics_text(installation: Installation) -> str:
    async with installation.web() as client, client.get("/metrics", headers=bearer(VIEWER)) as response:
        assert response.status == 200
        return await response.text()


async def test_left_ratio_is_least_of_source_and_population(installation_with_history: Installation) -> None:
    driver = installation_with_history.driver
    driver.register_population({"population": "people", "epsilon": driver.budget("feed").granted.epsilon * 1.25})
    driver.join("feed", "people")
    installation_with_history.flow()
    assert 'source_left_ratio{source="feed"} 0.2' in await metrics_text(installation_with_history)


async def test_metrics_are_totals_in_base_units(installation_with_history: Installation) -> None:
    text = await metrics_text(installation_with_history)
    samples = {
        (sample.name.removeprefix("sotto_monitor_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    record = installation_with_history.driver.budget("feed")
    assert samples["source_epsilon", "feed", "total"] == 10.0
    assert samples["source_epsilon", "feed", "granted"] == record.granted.epsilon
    assert samples["source_epsilon", "feed", "spent"] == record.spent.epsilon
    assert samples["source_left_ratio", "feed"] == pytest.approx(0.7)
    assert (samples["streams", "open"], samples["streams", "halted"]) == (2, 1)
    assert (samples["answers_total",], samples["charged_answers_total",]) == (18, 9)
    assert samples["streams_nearly_dry",] == 1
    assert samples["streams_dry_within_hour",] == 1
    assert samples["rejected_events_total", "malformed"] == 1
    assert (samples["lag_events", "worker"], samples["unassigned_partitions", "worker"]) == (7, 1)
    assert (samples["members", "worker"], samples["members", "budget"]) == (1, 0)
    assert samples["ready",] == 1


async def test_metrics_name_no_stream(installation_with_history: Installation) -> None:
    before = await metrics_text(installation_with_history)
    assert not re.search("quiet|busy|ended", before)
    for number in range(5):
        installation_with_history.driver.open(spec(f"more-{number}", epsilon=0.1))
    installation_with_history.flow()
    assert len((await metrics_text(installation_with_history)).splitlines()) == len(before.splitlines())


async def test_overview_adds_up_streams(installation_with_history: Installation) -> None:
    installation_with_history.monitor.record_history()
    installation_with_history.now += 60.0
    installation_with_history.ask("quiet", LOW, LOW, LOW, LOW, LOW, HIGH)
    installation_with_history.monitor.record_history()
    async with installation_with_history.web() as client:
        overview = await get(client, "/api/overview")
    assert (overview["answered"], overview["tops"], overview["rejected"]) == (24, 10, 1)
    assert overview["streams"] == {"open": 2, "exhausted": 0, "halted": 1, "closed": 0}
    assert (overview["workers"], overview["lag"], overview["nearly_dry"]) == (1, 7, 1)
    assert [point["answered"] for point in overview["history"]] == [18, 24]
    minute = overview["rates"][0]
    assert (minute["above"], minute["below"]) == (pytest.approx(1 / 60), pytest.approx(5 / 60))


def test_openapi_and_parser_agree_on_a_statements_length() -> None:
    """The longest statement of the OpenAPI document is the longest that the parser reads."""
    longest = build_document()["components"]["schemas"]["Statement"]["properties"]["statement"]["maxLength"]
    statement = "SELECT COUNT(*) FROM a"
    assert parse_statement(statement.ljust(longest)).table == "a"
    with pytest.raises(StatementError, match=f"more than {longest} characters"):
        parse_statement(statement.ljust(longest + 1))
