"""``sotto key``: noise keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.noise import NoiseKey, NoiseKeyError

app = typer.Typer(help="Noise keys.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Noise keys."""


@app.command("new")
def new(path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")]) -> None:
    """Make a noise key in a file that only its owner may read."""
    key = NoiseKey.generate()
    key.save(path)
    typer.echo(f"{path}: key {key.key_id}; keep a copy in a safe place: without it open streams cannot go on")


@app.command("rotate")
def rotate(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """Put a fresh key before those in the file: new streams are opened under it, open ones keep theirs."""
    key = NoiseKey.load(path).successor()
    key.save(path, replace=True)
    typer.echo(
        f"{path}: key {key.key_id} comes first, {len(key.older)} older behind it; restart all workers with this file "
        "first, then the budget service"
    )


@app.command("show")
def show(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """List the names of the keys in a file; a key's name is public."""
    key = NoiseKey.load(path)
    for place, one in enumerate((key, *key.older)):
        typer.echo(f"{one.key_id} {'older' if place else 'present'}")


@app.command("retire")
def retire(
    path: Annotated[Path, typer.Argument(help="The key file.")],
    key_id: Annotated[str, typer.Argument(help="The name of an older key.")],
) -> None:
    """Remove an older key from the file: streams that were opened under it cannot answer any more, ever."""
    key = NoiseKey.load(path)
    kept = tuple(one for one in key.older if one.key_id != key_id)
    if len(kept) == len(key.older):
        raise NoiseKeyError(f"{path} has no older key {key_id}; 'sotto key show {path}' lists them")
    NoiseKey(key.secret, kept).save(path, replace=True)
    typer.echo(f"{path}: key {key_id} is gone; {len(kept)} older ones are left")
