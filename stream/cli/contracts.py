"""``sotto contract``: the published contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import CommandError
from stream.contract.events import CONTRACT_VERSION
from stream.contract.export import broken, drift
from stream.contract.export import export as export_files
from stream.contract.export import release as release_version

app = typer.Typer(help="The published contract: JSON Schemas and the AsyncAPI document.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The contract's folder.")]
_FOLDER = Path("contract")


@app.command("export")
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


@app.command("check")
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
