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
from stream.cli import brokers, demos, keys, planning, queries, serving, sources, streams, topics
from stream.cli.output import CommandError
from stream.data import DataError
from stream.kafka.broker import BrokerError
from stream.kafka.topics import TopicsError
from stream.noise import NoiseKeyError

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

_COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serving.serve,
    "up": serving.up,
    "ask": queries.ask,
    "answers": queries.answers,
    "plan": planning.plan,
    "demo": demos.demo,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)

_EXPECTED = (
    RefusedError,
    PlanError,
    CommandError,
    DataError,
    BrokerError,
    TopicsError,
    NoiseKeyError,
    MalformedEventError,
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
        _fail(
            f"Kafka: {type(error).__name__}; is the broker that SOTTO_BOOTSTRAP names up? ('sotto broker start')"
        )
    except _EXPECTED as error:
        _fail(str(error))
    except KeyError as error:
        _fail(str(error.args[0]))


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(1)
