"""The commands sotto key and sotto contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import CommandError
from stream.dev.contract.contract_events import CONTRACT_VERSION
from stream.dev.contract.contract_files import broken, drift
from stream.dev.contract.contract_files import export as export_files
from stream.dev.contract.contract_files import release as release_version
from stream.privacy.noise import NoiseKey, NoiseKeyError

key_app = typer.Typer(help="Noise keys.", no_args_is_help=True)


@key_app.callback()
def _keys() -> None:
    """Noise keys."""


@key_app.command("new")
def new(path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")]) -> None:
    """Make a noise key in a file that only its owner may read."""
    key = NoiseKey.generate()
    key.save(path)
    typer.echo(f"{path}: key {key.key_id}; keep a copy in a safe place: without it open streams cannot go on")


@key_app.command("rotate")
def rotate(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """Put a fresh key before those in the file: new streams are opened under it, open ones keep theirs."""
    key = NoiseKey.load(path).successor()
    key.save(path, replace=True)
    typer.echo(
        f"{path}: key {key.key_id} comes first, {len(key.older)} older behind it; restart all workers with this file "
        "first, then the budget service"
    )


@key_app.command("show")
def show(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """List the names of the keys in a file; a key's name is public."""
    key = NoiseKey.load(path)
    for place, one in enumerate((key, *key.older)):
        typer.echo(f"{one.key_id} {'older' if place else 'present'}")


@key_app.command("retire")
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


contract_app = typer.Typer(
    help="The published contract: JSON Schemas and the AsyncAPI document.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The contract's folder.")]
_FOLDER = Path("contract")


@contract_app.command("export")
def export(
    folder: Folder = _FOLDER,
    release: Annotated[
        bool,
        typer.Option("--release", help="Also keep it as a released version, for later ones to be compared with."),
    ] = False,
) -> None:
    """Write the contract's files; run it whenever an event or a topic changes."""
    changed = export_files(folder)
    typer.echo(f"written: {', '.join(changed)}" if changed else "nothing has changed")
    if release:
        typer.echo(f"released: {release_version(folder)}")


@contract_app.command("check")
def check(folder: Folder = _FOLDER) -> None:
    """Compare the files with the code, and the contract with its released versions; exit status 1 if either fails."""
    drifted, problems = drift(folder), broken(folder)
    for problem in problems:
        typer.echo(f"breaks {problem}")
    if problems:
        raise CommandError(
            "the contract breaks a released version; take the change back, or give it a new major number"
        )
    if drifted:
        raise CommandError(f"out of date: {', '.join(drifted)}; run 'sotto contract export'")
    typer.echo(f"contract {CONTRACT_VERSION}: up to date, and breaks no released version")
