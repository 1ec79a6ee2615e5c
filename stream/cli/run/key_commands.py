"""``sotto key`` manages noise keys; ``sotto contract`` exports and checks the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import CommandError
from stream.dev.contract.contract_events import CONTRACT_VERSION
from stream.dev.contract.contract_files import drift, is_changed
from stream.dev.contract.contract_files import export as export_files
from stream.dev.contract.contract_files import release as release_version
from stream.privacy.noise import NoiseKey, NoiseKeyError

key_app = typer.Typer(help="Noise keys.", no_args_is_help=True)


@key_app.command("new")
def new(path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")]) -> None:
    """Create a noise key in a file that only its owner can read."""
    key = NoiseKey.generate()
    key.save(path)
    typer.echo(f"{path}: key {key.key_id}; keep a copy in a safe place: open streams cannot continue without it")


@key_app.command("rotate")
def rotate(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """Add a new key before those in the file: new streams use it, open streams keep theirs."""
    key = NoiseKey.load(path).successor()
    key.save(path, replace=True)
    typer.echo(
        f"{path}: key {key.key_id} is new, {len(key.older)} older ones are kept; restart all workers with this file "
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
    """Remove an older key from the file: streams opened with it can never answer again."""
    key = NoiseKey.load(path)
    kept = tuple(one for one in key.older if one.key_id != key_id)
    if len(kept) == len(key.older):
        raise NoiseKeyError(f"{path} has no older key {key_id}; 'sotto key show {path}' lists them")
    NoiseKey(key.secret, kept).save(path, replace=True)
    typer.echo(f"{path}: key {key_id} is removed; {len(kept)} older ones are kept")


contract_app = typer.Typer(
    help="The published contract: JSON Schemas and the AsyncAPI document.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The contract's folder.")]
_FOLDER = Path("contract")


@contract_app.command("export")
def export(
    folder: Folder = _FOLDER,
    release: Annotated[
        bool, typer.Option("--release", help="Also save it as the released version, which can no longer change.")
    ] = False,
) -> None:
    """Write the contract's files; required after every change of an event or a topic."""
    changed = export_files(folder)
    typer.echo(f"written: {', '.join(changed)}" if changed else "nothing has changed")
    if release:
        typer.echo(f"released: {release_version(folder)}")


@contract_app.command("check")
def check(folder: Folder = _FOLDER) -> None:
    """Compare the contract with the code and with its released version; exit status 1 if it differs."""
    if drifted := drift(folder):
        raise CommandError(f"out of date: {', '.join(drifted)}; run 'sotto contract export'")
    if is_changed(folder):
        raise CommandError(
            f"the contract differs from the released version {CONTRACT_VERSION}; revert the change, or raise CONTRACT_VERSION "
            "(the major number if it breaks producers or readers)"
        )
    typer.echo(f"contract {CONTRACT_VERSION}: up to date, and equal to its released version if there is one")
