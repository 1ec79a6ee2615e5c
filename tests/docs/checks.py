"""Checks of single blocks of code; each check raises if the block is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

import typer.main
from pydantic import TypeAdapter

from schemas import Answer, Query, Request, Source, StreamSpec
from stream.cli.app import app
from stream.questions.question_forms import opening_adapter
from tests.docs.pages import Block, matches

_SOURCE: TypeAdapter[Any] = TypeAdapter(Source)
_STREAM: TypeAdapter[Any] = TypeAdapter(StreamSpec)
_QUERY: TypeAdapter[Any] = TypeAdapter(Query)
_ANSWER: TypeAdapter[Any] = TypeAdapter(Answer)
_REQUEST: TypeAdapter[Any] = TypeAdapter(Request)
_FIRST_MATCH: tuple[tuple[set[str], TypeAdapter[Any]], ...] = (
    ({"request"}, _REQUEST),
    ({"outcome"}, _ANSWER),
    ({"mechanism"}, _STREAM),
    ({"source", "kind"}, _SOURCE),
    ({"id", "stream"}, _QUERY),
)

Namespace = dict[str, Any]


class WrongBlockError(AssertionError):
    """A block differs from its page's description."""


def check_python(blocks: Iterable[Block]) -> None:
    """Run a page's blocks in order, and compare their output with the page's."""
    namespace: Namespace = {"__name__": "page"}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.place, "exec"), namespace)  # noqa: S102  (the project's own pages)
        if block.output is not None and not matches(printed.getvalue(), block.output):
            raise WrongBlockError(f"{block.place}: prints {printed.getvalue()!r}, the page says {block.output!r}")


def check_json(text: str) -> None:
    """Parse one or several objects, each as the event or definition to which its fields belong."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        found, end = decoder.raw_decode(rest)
        for fields, model in _FIRST_MATCH:
            if fields <= found.keys():
                model.validate_json(json.dumps(found))
                break
        else:
            raise WrongBlockError(
                f"{sorted(found)}: no source, stream, query, answer or request; is it in another language?"
            )
        rest = rest[end:].strip()


def check_command(line: str) -> None:
    """Parse a command like the command line, without running it, and parse its JSON input."""
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        words.pop(0)
    command: Any = typer.main.get_command(app)
    context = command.make_context("sotto", words[1:])
    path = []
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        path.append(name)
        context = command.make_context(name, rest, parent=context)
    match path, context.params:
        case (["source", "add"], {"source": document}) if document.startswith("{"):
            _SOURCE.validate_json(document)
        case (["stream", "open"], {"stream": document}) if document.startswith("{"):
            opening_adapter().validate_json(document)
        case (["ask"], {"question": str(document)}):
            _QUERY.validate_python({"id": "1", "stream": "s", **json.loads(document)})


def check_mention(text: str) -> None:
    """Check that a command in a text exists, with the options named there."""
    command: Any = typer.main.get_command(app)
    words = re.findall(r"[^\s\[\]|]+", text)[1:]
    while words and hasattr(command, "get_command") and re.fullmatch(r"[a-z]+", words[0]):
        found = command.get_command(typer.Context(command), words[0])
        if found is None:
            raise WrongBlockError(f"{text}: there is no command '{words[0]}'")
        command = found
        words.pop(0)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known:
            raise WrongBlockError(f"{text}: there is no option {word}")
