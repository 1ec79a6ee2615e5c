"""``sotto topics``: the topics of an installation."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from stream.kafka.topics import create_topics
from stream.settings import Settings

app = typer.Typer(help="The topics of an installation.", no_args_is_help=True)


@app.callback()
def _topics() -> None:
    """The topics of an installation."""


@app.command("create")
def create(
    partitions: Annotated[int | None, typer.Option(help="Partitions of queries, answers and state.")] = None,
    replication: Annotated[int | None, typer.Option(help="Replicas of each topic.")] = None,
) -> None:
    """Create the topics that are missing, each with its configuration; existing ones are checked."""
    settings = Settings()
    settings = Settings(
        partitions=partitions or settings.partitions,
        replication=replication or settings.replication,
    )
    created = asyncio.run(create_topics(settings))
    typer.echo(f"created {', '.join(created)}" if created else "all topics are there")
