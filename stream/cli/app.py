"""All commands in one application, and one line for whatever goes wrong."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from stream import log
from stream.cli.later import Later, group_of
from stream.cli.standard_streams import give_up_output, take_over
from stream.extras import missing_of
from stream.version import VERSION

COMMANDS: Final = {
    "serve": Later("stream.cli.serving:serve", "Run a service until SIGTERM or Ctrl-C."),
    "up": Later(
        "stream.cli.starting:up",
        "Start broker, budget service, workers, a feed and monitor on this machine, and stop them at Ctrl-C.",
    ),
    "ask": Later("stream.cli.queries:ask", "Ask one query and wait for its answer."),
    "sql": Later(
        "stream.cli.statements:sql", "Ask what a SELECT asks, each number with its ±, and say what it cost."
    ),
    "answers": Later("stream.cli.queries:answers", "Print committed answers as they come."),
    "watch": Later("stream.cli.watching:watch", "Show the alerts of streams as they come."),
    "top": Later(
        "stream.cli.top:top",
        "Show budgets, busiest streams, services and refused events live, with a viewer's token.",
    ),
    "plan": Later(
        "stream.cli.planning:plan",
        "Compare the mechanisms for what is wanted, or the calibrations of one, and say which to take.",
    ),
    "simulate": Later(
        "stream.cli.simulating:simulate",
        "Run a stream on a public or made-up table before it is opened: errors and charges beside the promise.",
    ),
    "estimate": Later(
        "stream.cli.estimating:estimate",
        "Estimate the share of every category from the answers so far, with its confidence interval.",
    ),
    "audit": Later(
        "stream.cli.auditing:audit",
        "Run the shipped mechanisms in memory and bound their privacy loss from below by their answers.",
    ),
    "demo": Later(
        "stream.cli.demos:demo",
        "Run a job on real data and check every claim; exit status 0 only if all hold.",
    ),
    "key": Later("stream.cli.keys:app", "Noise keys."),
    "token": Later("stream.cli.tokens:app", "Who may use the monitor: names with a role, and their tokens."),
    "broker": Later("stream.cli.brokers:app", "A local Apache Kafka for development."),
    "topics": Later("stream.cli.topics:app", "The topics of an installation, and who may touch them."),
    "events": Later("stream.cli.events:app", "People's events, for live topics."),
    "source": Later("stream.cli.sources:app", "Sources and their budgets."),
    "population": Later("stream.cli.populations:app", "Populations: the people whom several sources are about."),
    "allot": Later(
        "stream.cli.populations:allot",
        "Let an analyst or a team have a part of a budget, or change the part that they have.",
    ),
    "stream": Later("stream.cli.streams:app", "Streams: a mechanism over a source."),
    "ledger": Later(
        "stream.cli.ledgers:app", "The ledger's audit trail, whether the ledger follows from it, and backups."
    ),
    "contract": Later(
        "stream.cli.contracts:app", "The published contract: JSON Schemas and the AsyncAPI document."
    ),
}
"""Every command and group of commands."""

_EXPECTED: Final = (
    "stream.errors:SottoError",
    "stream.accounting.planner:PlanError",
    "stream.backup.files:BackupError",
    "stream.cli.output:CommandError",
    "stream.cli.standard_streams:OutputError",
    "stream.data:DataError",
    "stream.kafka.broker_errors:BrokerError",
    "stream.kafka.listening:ListenError",
    "stream.kafka.differences:TopicsError",
    "stream.monitor.tokens:TokenError",
    "stream.alerts.configuration:AlertsError",
    "stream.monitor.monitor:MonitorEndedError",
    "stream.kafka.membership:MembershipLostError",
    "stream.kafka.supervision:StalledError",
    "stream.tracing:TracingError",
    "stream.contract.export:ContractError",
    "stream.contract.compatibility:UnknownKeywordError",
    "schemas.wire:MalformedEventError",
    "stream.simulation:SimulationError",
    "builtins:TimeoutError",
)
"""What a command may end with, by where it is defined: a module that was not imported has raised nothing."""

app = typer.Typer(
    cls=group_of(COMMANDS),
    name="sotto",
    help="Differentially private answers on a Kafka query stream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"sotto {VERSION}")
        raise typer.Exit


@app.callback()
def _sotto(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Differentially private answers on a Kafka query stream."""
    # A service says it in its log.
    if context.invoked_subcommand != "serve" and any(name.upper().startswith("SOTTO_") for name in os.environ):
        from stream.variables import warning  # noqa: PLC0415  (commands start sooner without settings)

        if (told := warning()) is not None:
            _say("warning", told)


def main() -> None:
    """Run the command line; exit status 1 or 2 and what to do on standard error if it fails, 130 after Ctrl-C."""
    log.quiet_clients()
    take_over()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except Exception as error:
        if (told := _told(error)) is None:
            raise
        _fail(told)


def _told(error: Exception) -> str | None:
    """One line for an error that a command may end with; None for any other."""
    if isinstance(error, ModuleNotFoundError) and (missing := missing_of(error)) is not None:
        return str(missing)
    if _is(error, "pydantic:ValidationError"):
        describe = import_module("schemas.wire").describe
        if getattr(error, "title", None) != "Settings":
            return str(describe(error))
        return str(describe(error, import_module("stream.settings").variable))
    if _is(error, "aiokafka.errors:KafkaError"):
        return str(import_module("stream.kafka.security").advice(error))
    if any(_is(error, one) for one in _EXPECTED):
        return str(error)
    return None


def _is(error: Exception, where: str) -> bool:
    module, _, name = where.partition(":")
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


def _fail(message: str) -> None:
    give_up_output()
    _say("error", message)
    sys.exit(1)


def _say(kind: str, message: str) -> None:
    from stream.cli.output import visible  # noqa: PLC0415  (half of the start of a command that fails otherwise)

    sys.stderr.write(f"{kind}: {visible(message)}\n")
