"""The access lists are documented, allow no more than the table says, and are printed in a form for Kafka's own tool."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import setup_commands
from stream.cli.output import CommandError
from stream.cli.setup_commands import topics_app
from stream.kafka.acls import AclRole, Operation, Resource, acl_commands, default_principal, role_access
from stream.kafka.topic_layouts import BROKER_TIMESTAMPS, durability_settings, layout
from stream.processing.topic_names import Topics
from stream.settings import Settings

DOCUMENTS = Path(__file__).parents[3] / "docs"
runner = CliRunner()


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOTTO_PREFIX", "SOTTO_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def test_security_page_has_settings_of_all_topics() -> None:
    text = (DOCUMENTS / "security.md").read_text()
    for setting, value in {**durability_settings(3), **BROKER_TIMESTAMPS}.items():
        assert f"`{setting}={value}`" in text


def test_role_access_gives_each_topic_its_writers() -> None:
    """Because each topic has one writing role, a producer cannot open streams."""
    given = role_access(Settings(prefix="sotto"))
    writers = {
        one.name: {
            role
            for role, granted in given.items()
            for other in granted
            if (other.resource, other.operation, other.name) == (Resource.TOPIC, Operation.WRITE, one.name)
        }
        for one in layout(Topics("sotto"))
    }
    assert writers == {
        "sotto.queries": {AclRole.PRODUCER, AclRole.FEED},
        "sotto.control": {AclRole.BUDGET},
        "sotto.answers": {AclRole.WORKER},
        "sotto.state": {AclRole.WORKER},
        "sotto.requests": {AclRole.OPERATOR, AclRole.MONITOR, AclRole.FEED},
        "sotto.charges": {AclRole.WORKER},
        "sotto.ledger": {AclRole.BUDGET},
        "sotto.trail": {AclRole.BUDGET},
        "sotto.partials": {AclRole.FEED},
        "sotto.merges": {AclRole.FEED},
        "sotto.rejected": {AclRole.WORKER, AclRole.BUDGET, AclRole.FEED},
        "sotto.status": {AclRole.WORKER, AclRole.BUDGET, AclRole.FEED},
    }


@pytest.mark.parametrize("role", [AclRole.WORKER, AclRole.BUDGET, AclRole.FEED])
def test_services_may_check_all_topics_that_they_use(role: AclRole) -> None:
    """A service that may not read the settings of a topic warns at each start."""
    granted = role_access(Settings(prefix="sotto", witnesses="file:///mnt/anchors.jsonl"))[role]
    topics = [one for one in granted if one.resource is Resource.TOPIC and not one.prefixed]
    checked = {one.name for one in topics if one.operation is Operation.DESCRIBE_CONFIGS}
    assert {one.name for one in topics} == checked


def test_role_access_of_monitor_includes_questions_only_if_enabled() -> None:
    quiet, asking = (set(role_access(Settings(monitor_asks=asks))[AclRole.MONITOR]) for asks in (False, True))
    assert quiet < asking
    assert {(one.operation, one.name.rpartition(".")[2]) for one in asking - quiet} == {
        (Operation.WRITE, "queries"),
        (Operation.READ, "answers"),
    }
    document = (DOCUMENTS / "security.md").read_text()
    assert "`SOTTO_MONITOR_ASKS`" in document


def test_prefixed_grants_cover_no_names_of_other_roles() -> None:
    given = role_access(Settings(prefix="sotto"))
    for role, granted in given.items():
        for one in (one for one in granted if one.prefixed):
            assert one.resource is not Resource.TOPIC or (role, one.name) == (AclRole.FEED, "sotto.feed.")
            others = [other.name for another in AclRole if another is not role for other in given[another]]
            assert not [name for name in others if name.startswith(one.name)]


def test_acl_commands_list_each_grant_once_with_shell_quoting() -> None:
    settings = Settings(prefix="sotto")
    granted = role_access(settings)[AclRole.BUDGET]
    lines = [shlex.split(line) for line in acl_commands("User:CN=a b,O='x'", granted, "kafka:9093")]
    assert all(
        line[0] == "kafka-acls.sh" and line[line.index("--allow-principal") + 1] == "User:CN=a b,O='x'"
        for line in lines
    )
    made = {
        (line[at + 1], line[-4].removeprefix("--"), line[-3], line[-1])
        for line in lines
        for at, word in enumerate(line)
        if word == "--operation"
    }
    assert made == {(one.operation, one.resource, one.name, one.pattern) for one in granted}


def test_acl_command_prints_tables_commands_and_json() -> None:
    shown = runner.invoke(topics_app, ["acl", "--role", "worker", "--json"])
    assert shown.exit_code == 0, shown.output
    printed = json.loads(shown.output)
    assert {entry["principal"] for entry in printed} == {default_principal(AclRole.WORKER, Settings())}
    assert len(printed) == len(role_access(Settings())[AclRole.WORKER])
    every = runner.invoke(topics_app, ["acl", "--commands"])
    assert {line.split()[0] for line in every.output.splitlines()} == {"kafka-acls.sh"}
    for role in AclRole:
        assert f"User:sotto-{role}" in every.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--principal", "User:alice"], "needs exactly one --role"),
        (["--principal", "User:alice", "--role", "worker", "--role", "budget"], "needs exactly one --role"),
        (["--principal", "alice", "--role", "worker"], "User:alice"),
        (["--apply", "--json"], "cannot be combined"),
    ],
)
def test_acl_command_refuses_ambiguous_arguments(arguments: list[str], message: str) -> None:
    refused = runner.invoke(topics_app, ["acl", *arguments])
    assert isinstance(refused.exception, CommandError)
    assert message in str(refused.exception)


def test_acl_command_grants_nothing_for_a_mistyped_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that Kafka hides may exist; a missing topic is created before its access lists."""

    async def describe(_: object, names: list[str]) -> dict[str, list[int]]:
        return {name: [3] if name.startswith("sotto.") else [] for name in names[1:]}

    async def create(*_: object) -> None:
        pass

    monkeypatch.setattr(setup_commands, "admin_client", lambda _: nullcontext())
    monkeypatch.setattr(setup_commands, "describe_topics", describe)
    monkeypatch.setattr(setup_commands, "create_acls", create)
    assert runner.invoke(topics_app, ["acl", "--apply"]).exit_code == 0
    refused = runner.invoke(topics_app, ["acl", "--apply"], env={"SOTTO_PREFIX": "soto"})
    assert refused.exit_code == 1
    assert "--apply: topics are missing: soto.answers, soto.charges, " in str(refused.exception)
    assert "; correct SOTTO_PREFIX, or run 'sotto topics create' first" in str(refused.exception)


def test_role_access_lets_only_feeds_create_topics() -> None:
    """Feeds create only their changelogs, and read only the live topics that are named."""
    given = role_access(Settings(prefix="sotto"), ["ops.departures"])
    creating = {
        (role, one.name) for role, granted in given.items() for one in granted if one.operation is Operation.CREATE
    }
    assert creating == {(AclRole.FEED, "sotto.feed.")}
    reading = {role for role, granted in given.items() for one in granted if one.name == "ops.departures"}
    assert reading == {AclRole.FEED}
    assert Topics("sotto").feed_state("a/b").startswith("sotto.feed.")
