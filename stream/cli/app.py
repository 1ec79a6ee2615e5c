"""The Typer application with all commands. A failing command prints one line.

A command's module is imported when the command runs: ``sotto --help`` imports none.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from stream import VERSION, diagnostics
from stream.optional_packages import explain_missing_packages, missing_extra_error

_COLUMNS_PATTERN: Final = re.compile("[1-9][0-9]{0,4}", re.ASCII)


class OutputError(Exception):
    """Standard output cannot be written; raised in place of OSError, which some libraries ignore.

    The message is empty if the reader has closed a pipe and the command has changed nothing.
    """


class _StandardOutput(io.TextIOWrapper):
    r"""Standard output: escapes unsupported characters (``\u03b5``) and raises OutputError."""

    def write(self, text: str) -> int:
        """Write ``text``."""
        with _raise_output_error():
            return super().write(text)

    def flush(self) -> None:
        """Write the buffer."""
        with _raise_output_error():
            super().flush()


class _StandardError(io.TextIOWrapper):
    """Standard error: ignores failed writes, which must not change the command's exit status."""

    def write(self, text: str) -> int:
        """Write ``text``."""
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write the buffer."""
        with suppress(OSError):
            super().flush()


@contextmanager
def _raise_output_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_closed = error.errno == errno.EPIPE
        if is_closed and _changes_nothing(sys.argv[1:]):
            raise OutputError from None
        why = "its reader has closed it" if is_closed else error.strerror
        raise OutputError(
            f"standard output: cannot be written ({why}); the command's changes are kept, but its output is incomplete"
        ) from None


_READING_COMMANDS: Final = frozenset(
    "answers audit check estimate list plan propose show simulate status top trail verify watch".split()  # noqa: SIM905  (one line)
)


def _changes_nothing(words: Sequence[str]) -> bool:
    """Return True if a command line only reads, or prints help or the version."""
    if not words or {"-h", "--help", "--version"} & {*words}:
        return True
    is_group = words[0] in COMMANDS and COMMANDS[words[0]].import_path.endswith("app")
    return len(words) == 1 or words[1] in _READING_COMMANDS if is_group else words[0] in _READING_COMMANDS


def replace_standard_streams() -> None:
    """Replace the process's standard output and error, except if a program or test has set them.

    Also removes an invalid ``COLUMNS`` from the environment, because libraries fail on it.
    """
    if not _COLUMNS_PATTERN.fullmatch(os.environ.get("COLUMNS", "")):
        os.environ.pop("COLUMNS", None)
    for name, kind in (("stdout", _StandardOutput), ("stderr", _StandardError)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            options = {
                option: getattr(stream, option) for option in ("encoding", "line_buffering", "write_through")
            }
            replaced = kind(stream.detach(), errors="backslashreplace", **options)
            setattr(sys, name, replaced)
            setattr(sys, f"__{name}__", replaced)


class LazyCommand(NamedTuple):
    """A command or group that is imported when it runs, from ``module:name``, and its short help."""

    import_path: str
    help: str
    extra: str | None = None
    """The extra to install if a package is missing; if None, the extra with this package."""


def make_lazy_group(commands: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """Return a group class that lists ``commands`` in this order, then the group's other commands."""

    class Group(TyperGroup):
        is_listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            return [*commands, *super().list_commands(ctx)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Import and return a command; while all are listed, return only its name and short help."""
            lazy = commands.get(cmd_name)
            if lazy is None:
                return super().get_command(ctx, cmd_name)
            if self.is_listing:
                return typer.core.TyperCommand(cmd_name, help=lazy.help)
            return _load_command(cmd_name, lazy)

        def invoke(self, ctx: Any) -> Any:
            """Run a command; the error of an invalid option has the value and the remedy, not pydantic's sentence."""
            try:
                return super().invoke(ctx)
            except typer.BadParameter as error:
                if hasattr(error.__cause__, "errors"):
                    error.message = _describe_bad_value(error.__cause__)
                raise

        def format_help(self, ctx: Any, formatter: Any) -> None:
            """Write the help without importing a command."""
            self.is_listing = True
            super().format_help(ctx, formatter)
            self.is_listing = False

    return Group


def _describe_bad_value(error: Any) -> str:
    from schemas.wire import explain_fault  # noqa: PLC0415  (commands start sooner without the contract)

    detail = error.errors(include_url=False)[0]
    message = explain_fault(detail)
    return message if detail["type"] == "value_error" else f"'{str(detail['input'])[:64]}' {message}"


def _load_command(name: str, lazy: LazyCommand) -> Any:
    module, _, attribute = lazy.import_path.partition(":")
    needs_monitor = name == "serve" and not {"monitor", "alerts"}.isdisjoint(sys.argv)
    # Imported objects stay alive, and garbage collection would take a fifth of the import time.
    gc.disable()
    try:
        with explain_missing_packages("monitor" if needs_monitor else lazy.extra):
            found = getattr(import_module(module), attribute)
    finally:
        gc.enable()
    return _build_command(name, found)


@cache
def _build_command(name: str, function_or_group: Any) -> Any:
    """Return the command of a function or group; it is built once, because Typer inspects all its options."""
    if not isinstance(function_or_group, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name)(function_or_group)
        function_or_group = single
    command = typer.main.get_command(function_or_group)
    command.name = name
    return command


COMMANDS: Final = {
    "serve": LazyCommand("stream.cli.service_commands:serve", "Run a service until SIGTERM or Ctrl-C."),
    "up": LazyCommand(
        "stream.cli.service_commands:up",
        "Start broker, budget service, workers, a feed and monitor on this machine, and stop them at Ctrl-C.",
        extra="all",
    ),
    "ask": LazyCommand("stream.cli.manage.query_commands:ask", "Ask one query and wait for its answer."),
    "sql": LazyCommand(
        "stream.cli.manage.shell_command:sql",
        "Answer a SELECT, each number with its ± and its 95 % confidence interval, and print the cost.",
    ),
    "shell": LazyCommand(
        "stream.cli.manage.shell_command:shell",
        "Answer SELECTs interactively, each with its price before it is asked.",
    ),
    "answers": LazyCommand("stream.cli.manage.answer_commands:answers", "Print committed answers as they arrive."),
    "watch": LazyCommand("stream.cli.manage.answer_commands:watch", "Show the alerts of streams as they arrive."),
    "top": LazyCommand(
        "stream.cli.top_command:top",
        "Show budgets, busiest streams, services and refused events live, with a viewer's token.",
    ),
    "plan": LazyCommand(
        "stream.cli.plan_command:plan",
        "Compare the mechanisms for a question, or the calibrations of one, and recommend one.",
    ),
    "simulate": LazyCommand(
        "stream.cli.simulate_command:simulate",
        "Run a stream on a public or generated table before it is opened: errors and charges beside the promise.",
    ),
    "estimate": LazyCommand(
        "stream.cli.manage.estimate_command:estimate",
        "Estimate the share of each category on a stream of randomized response, with its interval.",
    ),
    "audit": LazyCommand(
        "stream.cli.demo_command:audit",
        "Run the shipped mechanisms in memory and compute a lower bound of their privacy loss from their answers.",
    ),
    "demo": LazyCommand(
        "stream.cli.demo_command:demo",
        "Run a job on real data and check every claim; exit status 0 only if all hold.",
        extra="all",
    ),
    "key": LazyCommand("stream.cli.setup_commands:key_app", "Noise keys."),
    "token": LazyCommand(
        "stream.cli.monitor_commands:token_app", "The monitor's access tokens: names with their roles."
    ),
    "broker": LazyCommand("stream.cli.setup_commands:broker_app", "A local Apache Kafka for development."),
    "topics": LazyCommand(
        "stream.cli.setup_commands:topics_app", "The topics of an installation and their access control lists."
    ),
    "events": LazyCommand("stream.cli.manage.event_commands:app", "People's events, for live topics."),
    "source": LazyCommand("stream.cli.manage.budget_commands:app", "Sources and their budgets."),
    "population": LazyCommand(
        "stream.cli.manage.budget_commands:population_app", "Populations: people who are in several sources."
    ),
    "allot": LazyCommand(
        "stream.cli.manage.budget_commands:allot",
        "Allot a part of a budget to an analyst or a team, or change an allotment.",
    ),
    "stream": LazyCommand("stream.cli.manage.stream_commands:app", "Streams: a mechanism over a source."),
    "ledger": LazyCommand(
        "stream.cli.manage.ledger_commands:app",
        "The ledger's audit trail, whether the ledger follows from it, and backups.",
    ),
    "contract": LazyCommand(
        "stream.cli.setup_commands:contract_app", "The published contract: JSON Schemas and the AsyncAPI document."
    ),
}
"""All commands and groups of commands."""

_EXPECTED_ERRORS: Final = (
    "stream.errors:SottoError",
    "stream.privacy.planning.plans:PlanError",
    "stream.dev.backup_file:BackupError",
    "stream.cli.output:CommandError",
    "stream.cli.app:OutputError",
    "stream.tables.table_errors:TableDataError",
    "stream.kafka.broker_process:BrokerError",
    "stream.engine.health:ListenError",
    "stream.kafka.topic_layouts:TopicsError",
    "stream.monitor.api.tokens:TokenError",
    "stream.monitor.api.single_sign_on:SignOnSettingsError",
    "stream.alerts.alerts_file:AlertsError",
    "stream.monitor.api.monitor_state:MonitorEndedError",
    "stream.engine.supervision:MembershipLostError",
    "stream.engine.supervision:StalledError",
    "stream.processing.digest_table:DigestFileError",
    "stream.diagnostics:TracingError",
    "stream.dev.contract_files:ContractError",
    "schemas.wire:MalformedEventError",
    "stream.dev.simulation_inputs:SimulationError",
    "builtins:TimeoutError",
)
"""Errors that print one line, as ``module:name``; an error's module is imported when it is raised."""

app = typer.Typer(
    cls=make_lazy_group(COMMANDS),
    name="sotto",
    help="Differentially private answers on a Kafka query stream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"sotto {VERSION}")
        raise typer.Exit


@app.callback()
def _root_command(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Differentially private answers on a Kafka query stream."""
    # ``sotto serve`` logs this warning itself.
    if context.invoked_subcommand != "serve" and any(name.upper().startswith("SOTTO_") for name in os.environ):
        from stream.settings import unread_variables_warning  # noqa: PLC0415  (commands start sooner without settings)

        if (text := unread_variables_warning()) is not None:
            _print_message("warning", text)


def main() -> None:
    """Run the command line.

    A failure prints one line on standard error and exits with 1 or 2; Ctrl-C exits with 130, and a reading command
    whose output pipe is closed with 141.
    """
    diagnostics.silence_kafka_client()
    replace_standard_streams()
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except Exception as error:
        if (message := _error_line(error)) is None:
            raise
        _exit_with_error(message)


def _error_line(error: Exception) -> str | None:
    """Return the line to print for an expected error; None for a bug."""
    if isinstance(error, ModuleNotFoundError) and (missing := missing_extra_error(error)) is not None:
        return str(missing)
    if _is_instance(error, "pydantic:ValidationError"):
        describe = import_module("schemas.wire").describe
        if getattr(error, "title", None) != "Settings":
            return str(describe(error))
        return str(describe(error, import_module("stream.settings").variable_of))
    if _is_instance(error, "aiokafka.errors:KafkaError"):
        return str(import_module("stream.kafka.client.broker_connections").describe_error(error))
    if any(_is_instance(error, import_path) for import_path in _EXPECTED_ERRORS):
        return str(error) or ("" if isinstance(error, OutputError) else "no answer in time; try again")
    return None


def _is_instance(error: Exception, import_path: str) -> bool:
    module, _, name = import_path.partition(":")
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


def _exit_with_error(message: str) -> None:
    if isinstance(sys.stdout, _StandardOutput):
        # Python flushes standard output again at its end, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not message:
        sys.exit(128 + signal.SIGPIPE)
    _print_message("error", message)
    sys.exit(1)


def _print_message(kind: str, message: str) -> None:
    from stream.cli.output import escape_text  # noqa: PLC0415  (half of the start-up time of a failing command)

    typer.echo(f"{kind}: {escape_text(message)}", err=True)
