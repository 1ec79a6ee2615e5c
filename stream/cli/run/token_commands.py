"""``sotto token``: creates, lists and revokes the monitor's access tokens."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from schemas.base import Identifier
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.cli.run.monitor_process import NAMES_FILE
from stream.kafka.client.local_address import folders_above
from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import Token, TokenFile, article, change_names, read_names
from stream.secret_files import write_secret
from stream.settings import Settings

app = typer.Typer(help="The monitor's access tokens: names with their roles.", no_args_is_help=True)
_name: TypeAdapter[str] = TypeAdapter(Identifier)

UNITS: Final = {"h": 3_600, "d": 86_400}


File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of names; if omitted, SOTTO_MONITOR_NAMES_FILE, or .sotto/names.json here or in a parent folder.",
    ),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Holder of the token: a person, a team or a program.")],
    role: Annotated[
        AccessRole,
        typer.Option(help="viewer reads; analyst opens streams within an allotment; operator does everything."),
    ],
    expires: Annotated[str, typer.Option(help="Lifetime, such as 90d or 12h, or never.")] = "90d",
    into: Annotated[
        Path | None, typer.Option(help="Write the token to this new owner-only file instead of printing it.")
    ] = None,
    file: File = None,
) -> None:
    """Create a token for a name and print it once; the file of names keeps only its digest."""
    now = int(time.time())
    try:
        _name.validate_python(name)
    except ValidationError:
        raise CommandError(
            f"name: {name!r} is invalid; use up to 128 letters, digits and ._:/@+-, a letter or digit first"
        ) from None
    end = _end(expires, now)
    path = _file(file, must_exist=False)
    if into is not None and into.exists():
        raise CommandError(f"--into: {into} exists already; give a new file")

    def add(names: TokenFile) -> tuple[TokenFile, tuple[Token, str]]:
        changed, token, text = names.with_token(name, role, now=now, expires=end)
        return changed, (token, text)

    token, text = change_names(path, add)
    until = "does not expire" if end is None else f"expires {_date(end)}"
    summary = f"{path}: token {token.id} of {name}, {article(token.role)}, {until}"
    if into is None:
        typer.echo(f"{summary}; it is shown only this time:", err=True)
        typer.echo(text)
    else:
        write_secret(into, text)
        say(f"{summary}; written to {into}", soft_wrap=True)


@app.command("list")
def list_tokens(file: File = None, as_json: AsJson = False) -> None:
    """List the id, name, role and validity of every token; never the token itself."""
    path = _file(file, must_exist=True)
    now = time.time()
    tokens = sorted(read_names(path).tokens, key=lambda token: (token.name, token.created, token.id))
    if as_json:
        show_json([{**token.model_dump(exclude={"digest"}), "standing": token.standing(now)} for token in tokens])
        return
    show_table(
        f"{len(tokens)} tokens in {path}",
        ["name", "role", "token", "standing", "created", "expires"],
        [
            [
                token.name,
                token.role,
                token.id,
                token.standing(now) + (f" {_date(token.revoked)}" if token.revoked is not None else ""),
                _date(token.created),
                "never" if token.expires is None else _date(token.expires),
            ]
            for token in tokens
        ],
    )


@app.command("revoke")
def revoke(
    which: Annotated[str, typer.Argument(help="A name, for all its tokens, or a token's id.")], file: File = None
) -> None:
    """Revoke a name's tokens, or one by its id: a running monitor refuses them from its next request."""
    path = _file(file, must_exist=True)
    ended = change_names(path, lambda names: names.without(which, int(time.time())))
    if not ended:
        say(f"{path}: nothing to do, {which} is revoked already", soft_wrap=True)
    for token in ended:
        say(f"{path}: token {token.id} of {token.name}, {article(token.role)}, is revoked", soft_wrap=True)


def _file(given: Path | None, *, must_exist: bool) -> Path:
    if given is None and (named := Settings().monitor_names_file):
        given = Path(named)
    if given is None:
        given = next((path for folder in folders_above() if (path := folder / NAMES_FILE).is_file()), None)
    if given is None:
        raise CommandError(
            "--file: no file of names; give one, or set SOTTO_MONITOR_NAMES_FILE; 'sotto up' creates .sotto/names.json"
        )
    if must_exist and not given.exists():
        raise CommandError(
            f"--file: {given} does not exist; 'sotto token create NAME --role ROLE --file {given}' creates it"
        )
    return given


def _end(text: str, now: int) -> int | None:
    if text == "never":
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hd])", text)
    if found is None:
        raise CommandError(f"--expires: {text!r} is not a lifetime; give hours as 12h, days as 90d, or never")
    return now + int(found[1]) * UNITS[found[2]]


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
