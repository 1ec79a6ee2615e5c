"""``sotto token``: who may use the monitor."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from schemas.base import Identifier
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.cli.run.monitor_process import NAMES_FILE
from stream.kafka.client.local_address import folders_above
from stream.monitor.api.tokens import Token, TokenFile, article, change_names, read_names
from stream.secret_files import write_secret
from stream.settings import Settings

app = typer.Typer(help="The monitor's access tokens: names with their roles.", no_args_is_help=True)
_name: TypeAdapter[str] = TypeAdapter(Identifier)

UNITS: Final = {"h": 3_600, "d": 86_400}


class RoleOption(StrEnum):
    """What a name may do: the roles of ``AccessRole``."""

    VIEWER = "viewer"
    ANALYST = "analyst"
    OPERATOR = "operator"


File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of names; else SOTTO_MONITOR_NAMES_FILE, or .sotto/names.json here or in a folder above.",
    ),
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose token it is: a person, a team or a program.")],
    role: Annotated[
        RoleOption, typer.Option(help="viewer looks; analyst opens within an allotment; operator does everything.")
    ],
    expires: Annotated[str, typer.Option(help="After how long, as in 90d or 12h, or never.")] = "90d",
    into: Annotated[
        Path | None, typer.Option(help="Write the token to this new owner-only file; print nothing of it.")
    ] = None,
    file: File = None,
) -> None:
    """Make a token for a name, and print it: this once, for the file of names keeps its digest alone."""
    now = int(time.time())
    try:
        _name.validate_python(name)
    except ValidationError:
        raise CommandError(
            f"name: {name!r} is none; give up to 128 letters, digits and ._:/@+-, a letter or digit first"
        ) from None
    end = _end(expires, now)
    path = _file(file, must_exist=False)
    if into is not None and into.exists():
        raise CommandError(f"--into: {into} exists already; a token is never overwritten")

    def add(names: TokenFile) -> tuple[TokenFile, tuple[Token, str]]:
        changed, token, text = names.with_token(name, role.value, now=now, expires=end)
        return changed, (token, text)

    token, text = change_names(path, add)
    until = "does not expire" if end is None else f"expires {_date(end)}"
    told = f"{path}: token {token.id} of {name}, {article(token.role)}, {until}"
    if into is None:
        typer.echo(f"{told}; this is the only time that it is shown:", err=True)
        typer.echo(text)
    else:
        write_secret(into, text)
        say(f"{told}; it is in {into}", soft_wrap=True)


@app.command("list")
def list_tokens(file: File = None, as_json: AsJson = False) -> None:
    """List every token that was made: its id, name, role and whether it still opens anything; never the token."""
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
    """Take a name's tokens back, or one token by its id: a running monitor refuses them from the next request on."""
    path = _file(file, must_exist=True)
    ended = change_names(path, lambda names: names.without(which, int(time.time())))
    if not ended:
        say(f"{path}: nothing to do, {which} has been revoked before", soft_wrap=True)
    for token in ended:
        say(f"{path}: token {token.id} of {token.name}, {article(token.role)}, is revoked", soft_wrap=True)


def _file(given: Path | None, *, must_exist: bool) -> Path:
    if given is None and (named := Settings().monitor_names_file):
        given = Path(named)
    if given is None:
        given = next((path for folder in folders_above() if (path := folder / NAMES_FILE).is_file()), None)
    if given is None:
        raise CommandError(
            "no file of names: give --file, or set SOTTO_MONITOR_NAMES_FILE; 'sotto up' makes .sotto/names.json"
        )
    if must_exist and not given.exists():
        raise CommandError(f"there is no {given}; 'sotto token create NAME --role ROLE --file {given}' makes it")
    return given


def _end(text: str, now: int) -> int | None:
    if text == "never":
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hd])", text)
    if found is None:
        raise CommandError(f"--expires: {text!r} is no time; give hours as 12h, days as 90d, or never")
    return now + int(found[1]) * UNITS[found[2]]


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
