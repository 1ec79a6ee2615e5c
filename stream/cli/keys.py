"""``sotto key``: noise keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.noise import NoiseKey

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
