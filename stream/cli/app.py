"""All commands in one application, and one line for whatever goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from aiokafka.errors import KafkaError
from pydantic import ValidationError

from schemas.wire import MalformedEventError, describe
from stream import log
from stream.accounting.ledger import RefusedError
from stream.accounting.planner import PlanError
from stream.cli import (
    auditing,
    brokers,
    contracts,
    demos,
    estimating,
    keys,
    planning,
    queries,
    serving,
    simulating,
    sources,
    statements,
    streams,
    top,
    topics,
)
from stream.cli.output import CommandError, visible
from stream.contract.compatibility import UnknownKeywordError
from stream.contract.export import ContractError
from stream.data import DataError
from stream.errors import SottoError
from stream.kafka.broker import BrokerError
from stream.kafka.membership import MembershipLostError
from stream.kafka.security import advice
from stream.kafka.supervision import StalledError
from stream.kafka.topics import TopicsError
from stream.monitor.monitor import MonitorEndedError
from stream.monitor.tokens import TokenError
from stream.noise import NoiseKeyError
from stream.secret_files import SecretFileError
from stream.simulation import SimulationError
from stream.tracing import TracingError

app = typer.Typer(
    name="sotto",
    help="Differentially private answers on a Kafka query stream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(keys.app, name="key")
app.add_typer(brokers.app, name="broker")
app.add_typer(topics.app, name="topics")
app.add_typer(sources.app, name="source")
app.add_typer(streams.app, name="stream")
app.add_typer(contracts.app, name="contract")

_COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serving.serve,
    "up": serving.up,
    "ask": queries.ask,
    "sql": statements.sql,
    "answers": queries.answers,
    "top": top.top,
    "plan": planning.plan,
    "simulate": simulating.simulate,
    "estimate": estimating.estimate,
    "audit": auditing.audit,
    "demo": demos.demo,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)

_EXPECTED = (
    SottoError,
    RefusedError,
    PlanError,
    CommandError,
    DataError,
    BrokerError,
    TopicsError,
    NoiseKeyError,
    SecretFileError,
    TokenError,
    MonitorEndedError,
    MembershipLostError,
    StalledError,
    TracingError,
    ContractError,
    UnknownKeywordError,
    MalformedEventError,
    SimulationError,
    TimeoutError,
)


def main() -> None:
    """Run the command line; exit status 1 or 2 and what to do on standard error if it fails, 130 after Ctrl-C."""
    log.quiet_clients()
    try:
        app()
    except ValidationError as error:
        _fail(describe(error))
    except KafkaError as error:
        _fail(advice(error))
    except _EXPECTED as error:
        _fail(str(error))
    except KeyError as error:
        _fail(str(error.args[0]))


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {visible(message)}\n")
    sys.exit(1)
