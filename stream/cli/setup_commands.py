"""``sotto key``, ``topics``, ``contract`` and ``broker``: commands that set an installation up.

They create and rotate noise keys, create and check topics with their access control lists, export and
check the published contract, and start and stop a local broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream.cli.output import AsJson, CommandError, escape_text, show_json, show_table
from stream.dev.contract_events import CONTRACT_VERSION
from stream.dev.contract_files import export_files, is_changed, list_drift, release_version
from stream.formatting import format_count
from stream.kafka.acls import (
    ANY_HOST,
    AclEntry,
    AclRole,
    acl_commands,
    create_acls,
    default_principal,
    role_access,
)
from stream.kafka.broker_addresses import DEFAULT_FOLDER, MAX_NODES, BrokerInfo, ClusterInfo, local_settings
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_creation import check_topics, create_topics
from stream.kafka.topic_layouts import describe_topics, durability_settings, format_differences, layout
from stream.privacy.noise.keys import NoiseKey, NoiseKeyError
from stream.processing.topic_names import Topics
from stream.settings import Settings, variable_of

if TYPE_CHECKING:
    from stream.kafka.local_broker import LocalBroker, LocalCluster

key_app = typer.Typer(help="Noise keys.", no_args_is_help=True)


@key_app.command("new")
def new(path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")]) -> None:
    """Create a noise key in a file that only its owner can read."""
    key = NoiseKey.generate()
    key.save(path)
    typer.echo(f"{path}: key {key.key_id}; keep a copy in a safe place: open streams cannot continue without it")


@key_app.command("rotate")
def rotate(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """Add a new key before the keys in the file; new streams use it, and open streams keep their key."""
    key = NoiseKey.load(path).successor()
    key.save(path, replace=True)
    typer.echo(
        f"{path}: key {key.key_id} is new, {format_count(len(key.older), 'older key')} kept; restart all workers with this file "
        "first, then the budget service"
    )


@key_app.command("show")
def show(path: Annotated[Path, typer.Argument(help="The key file.")]) -> None:
    """List the names of the keys in a file; a key's name is public."""
    key = NoiseKey.load(path)
    for index, each_key in enumerate((key, *key.older)):
        typer.echo(f"{each_key.key_id} {'older' if index else 'current'}")


@key_app.command("retire")
def retire(
    path: Annotated[Path, typer.Argument(help="The key file.")],
    key_id: Annotated[str, typer.Argument(help="The name of an older key.")],
) -> None:
    """Remove an older key from the file; streams that were opened with it can never answer again."""
    key = NoiseKey.load(path)
    kept = tuple(older_key for older_key in key.older if older_key.key_id != key_id)
    if len(kept) == len(key.older):
        raise NoiseKeyError(f"{path} has no older key {key_id}; 'sotto key show {path}' lists them")
    NoiseKey(key.secret, kept).save(path, replace=True)
    typer.echo(
        f"{path}: key {key_id} is removed, {format_count(len(kept), 'older key')} kept; a table that was registered with it "
        "answers only after 'sotto source refresh'"
    )


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
    if drifted := list_drift(folder):
        raise CommandError(f"out of date: {', '.join(drifted)}; run 'sotto contract export'")
    if is_changed(folder):
        raise CommandError(
            f"the contract differs from the released version {CONTRACT_VERSION}; revert the change, or raise CONTRACT_VERSION "
            "(the major number if it breaks producers or readers)"
        )
    typer.echo(f"contract {CONTRACT_VERSION}: up to date, and equal to its released version if there is one")


topics_app = typer.Typer(
    help="The topics of an installation and their access control lists.", no_args_is_help=True
)


@topics_app.command("create")
def create(
    partitions: Annotated[
        int | None,
        typer.Option(
            help="Partitions of queries, answers and state; if omitted, the existing number, or four.",
            min=1,
            max=10_000,
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            help="Replicas of each topic; if omitted, three, or one per broker if there are fewer.", min=1, max=10
        ),
    ] = None,
) -> None:
    """Create the missing topics with their configuration; check existing topics without changing them.

    Exit status 1 if services cannot work with an existing topic: Kafka deletes required records,
    or partitions or replicas differ.
    """
    given = {"partitions": partitions, "replication": replication}
    settings = local_settings(**{name: number for name, number in given.items() if number is not None})
    created = asyncio.run(create_topics(settings))
    if created.names:
        typer.echo(f"created {', '.join(created.names)}")
        min_in_sync = durability_settings(created.replication)["min.insync.replicas"]
        brokers = format_count(created.brokers, "broker")
        count = format_count(created.partitions, "partition")
        typer.echo(
            f"{count}, replication {created.replication}, min.insync.replicas {min_in_sync}, among {brokers}"
        )
    else:
        typer.echo("all topics exist")
    if created.differences:
        line = f"existing topics differ and are not changed: {format_differences(created.differences)}"
        if not all(one.is_tolerable for one in created.differences):
            raise CommandError(line)
        typer.echo(f"warning: {escape_text(line)}", err=True)


@topics_app.command("check")
def compare_topics() -> None:
    """Compare every topic with its required configuration; exit status 1 if one differs."""
    differences = asyncio.run(check_topics(local_settings()))
    if differences:
        raise CommandError(format_differences(differences))
    typer.echo("all topics have the required configuration")


@topics_app.command("acl")
def acl(
    role: Annotated[list[AclRole] | None, typer.Option(help="Only this role; repeat it for several.")] = None,
    principal: Annotated[
        str | None, typer.Option(help="Principal of the role; if omitted, User:PREFIX-ROLE.", metavar="User:NAME")
    ] = None,
    live: Annotated[
        list[str] | None, typer.Option(help="A live topic that feeds read; repeat it for several.")
    ] = None,
    apply_now: Annotated[bool, typer.Option("--apply", help="Apply the lists instead of printing them.")] = False,
    commands: Annotated[bool, typer.Option("--commands", help="Print kafka-acls.sh commands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the permissions of each role on Kafka, or apply them."""
    if apply_now + commands + as_json > 1:
        raise CommandError("--apply, --commands and --json cannot be combined; give one")
    if principal is not None and (role is None or len(role) != 1):
        raise CommandError("--principal: needs exactly one --role; give it")
    if principal is not None and not principal.partition(":")[2]:
        raise CommandError("--principal: has no type; give it, as in 'User:alice'")
    settings = local_settings()
    access = role_access(settings, live or ())
    principals = {name: principal or default_principal(name, settings) for name in role or AclRole}
    if apply_now:
        asyncio.run(_apply(settings, {holder: access[name] for name, holder in principals.items()}))
        typer.echo(f"applied to {', '.join(principals.values())}")
        return
    if commands:
        for name, holder in principals.items():
            typer.echo("\n".join(acl_commands(holder, access[name], settings.bootstrap)))
        return
    entries = [(name, holder, entry) for name, holder in principals.items() for entry in access[name]]
    if as_json:
        fixed = {"host": ANY_HOST, "permission": "Allow"}
        names = ("operation", "resource", "name", "pattern")
        show_json(
            [
                {"role": of_role, "principal": holder, **fixed, **{name: getattr(entry, name) for name in names}}
                for of_role, holder, entry in entries
            ]
        )
        return
    show_table(
        "Roles",
        ["role", "principal", "may", "on", "named"],
        [
            [name, holder, entry.operation, entry.resource, f"{entry.name}{'…' if entry.prefixed else ''}"]
            for name, holder, entry in entries
        ],
    )


async def _apply(settings: Settings, wanted: dict[str, tuple[AclEntry, ...]]) -> None:
    """Apply the lists; CommandError if a topic is missing, because a mistyped prefix would give rights to no topic."""
    async with admin_client(settings) as admin:
        found = await describe_topics(admin, [one.name for one in layout(Topics(settings.prefix))])
    if missing := sorted(name for name, replicas in found.items() if not replicas):
        raise CommandError(
            f"--apply: topics are missing: {', '.join(missing)}; correct {variable_of('prefix')}, or run 'sotto topics create' first"
        )
    for principal, granted in wanted.items():
        await create_acls(settings, principal, granted)


broker_app = typer.Typer(help="A local Apache Kafka for development.", no_args_is_help=True)

BrokerFolder = Annotated[Path, typer.Option(help="Folder of the broker's data.")]


@broker_app.command("start")
def start(
    folder: BrokerFolder = DEFAULT_FOLDER,
    port: Annotated[
        int | None, typer.Option(help="Client port of the first node; 9092 or a free one if omitted.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of nodes; if omitted, as many as the folder has, or one. With several, topics have three "
            "replicas, of which two must be in sync.",
            min=1,
            max=MAX_NODES,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker, or a cluster of several brokers, and leave it running."""
    info = _find_broker(folder, nodes).start(port, progress=None if as_json else typer.echo)
    _show_broker(info, as_json=as_json)


@broker_app.command("prepare")
def prepare() -> None:
    """Download Kafka and prepare its start (70 MB): brokers then start with half the CPU time."""
    from stream.kafka.local_broker import record_start_cache  # noqa: PLC0415

    typer.echo(f"saved in {record_start_cache(typer.echo)}")


@broker_app.command("stop")
def stop(folder: BrokerFolder = DEFAULT_FOLDER) -> None:
    """Stop the broker, or all nodes of the cluster."""
    typer.echo("stopped" if _find_broker(folder).stop() else "no broker runs in that folder")


@broker_app.command("status")
def status(folder: BrokerFolder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Print whether the broker, or each node of the cluster, runs and where."""
    _show_broker(_find_broker(folder).status(), as_json=as_json)


def _find_broker(folder: Path, nodes: int | None = None) -> LocalBroker | LocalCluster:
    from stream.kafka.broker_process import read_own_cluster  # noqa: PLC0415
    from stream.kafka.local_broker import LocalBroker, LocalCluster  # noqa: PLC0415

    if read_own_cluster(folder.absolute()) is not None or (nodes or 1) > 1:
        return LocalCluster(folder, nodes, detached=True)
    return LocalBroker(folder, detached=True)


def _show_broker(info: BrokerInfo | ClusterInfo | None, *, as_json: bool) -> None:
    if as_json:
        show_json({"running": info is not None, **_broker_json(info)})
    elif info is None:
        typer.echo("no broker runs in that folder")
    elif isinstance(info, BrokerInfo):
        typer.echo(f"broker at {info.bootstrap} (process {info.pid}, data in {info.folder})")
    else:
        typer.echo(f"cluster of {len(info.nodes)} brokers at {info.bootstrap} (data in {info.folder})")
        for number, node in enumerate(info.nodes, start=1):
            running = "does not run" if node is None else f"at {node.bootstrap} (process {node.pid})"
            typer.echo(f"  node {number} {running}")


def _broker_json(info: BrokerInfo | ClusterInfo | None) -> dict[str, object]:
    match info:
        case None:
            return {}
        case BrokerInfo():
            return {"bootstrap": info.bootstrap, "pid": info.pid, "folder": str(info.folder)}
        case ClusterInfo():
            nodes = [None if one is None else {"bootstrap": one.bootstrap, "pid": one.pid} for one in info.nodes]
            return {"bootstrap": info.bootstrap, "nodes": nodes, "folder": str(info.folder)}
