"""The compared systems: their start, and their requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.installation import FOLDER, Installation
from benchmarks.java_programs import java_classpath
from benchmarks.programs import Program, service
from stream.kafka.kafka_programs import java_launcher

SOTTO = "Sotto"
KAFKA_STREAMS = "Kafka Streams"
PEERS = Path(__file__).parent / "peers"
ENVIRONMENT = Path(".sotto/bench-venv")
"""The environment of the peers' Python packages, whose versions may differ from the project's."""

STREAMS_JARS = "org.apache.kafka:kafka-streams:4.3.1"
"""Its JSON library, jackson-databind, comes with the broker's own jars."""


@dataclass(frozen=True)
class Contender:
    """A stream processor: a function that starts it on an input and an output topic, and its share of the queries."""

    name: str
    start: Callable[[Installation, str, str, Path], Program]
    share: float = 1.0
    seconds: float = 180.0
    is_sotto: bool = False
    """Whether it reads the installation's own topics."""


def sotto(processes: int = 1) -> Contender:
    """Worker processes with the settings that Sotto ships with."""
    several = () if processes == 1 else ("--processes", str(processes))

    def start(installation: Installation, _source: str, _sink: str, log: Path) -> Program:
        return service("worker", installation.settings, installation.noise_key, log, several)

    return Contender(f"{SOTTO}, {processes} processes" if several else SOTTO, start, is_sotto=True)


def kafka_streams(
    name: str, *, state: str = "plain", settings: Mapping[str, str] | None = None
) -> Contender | None:
    """Return Kafka Streams on the broker's Java; None without a compiler."""
    compiler = shutil.which("javac")
    if compiler is None:
        print("Kafka Streams is left out: there is no javac on PATH; install a JDK of version 17 or later")
        return None
    classpath = java_classpath(STREAMS_JARS)
    classes = FOLDER / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, "-nowarn", "-cp", classpath, "-d", classes, PEERS / "KafkaStreamsPeer.java"],
        check=True,
    )
    quiet = FOLDER / "streams-log.properties"
    quiet.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\nappender.console.name = console\n",
    )
    more = ",".join(f"{key}={value}" for key, value in (settings or {}).items())

    def start(installation: Installation, source: str, sink: str, log: Path) -> Program:
        command: list[str | Path] = [
            java_launcher(),
            f"-Dlog4j2.configurationFile={quiet.absolute()}",
            f"-Dsettings={more}",
            "-cp",
            f"{classpath}{os.pathsep}{classes.absolute()}",
            "KafkaStreamsPeer",
            installation.settings.bootstrap,
            source,
            sink,
            _state_folder(sink),
            state,
        ]
        return Program(command, log)

    return Contender(name, start)


def passthrough() -> Contender | None:
    """An exactly-once pass-through in C, built against the librdkafka of confluent-kafka's wheel."""
    reason = "The pass-through in C is left out: "
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        print(f"{reason}there is no C compiler on PATH; install cc, gcc or clang")
        return None
    package = find_spec("confluent_kafka")
    found = Path(package.origin or "").parents[1].glob("confluent_kafka.libs/librdkafka*") if package else ()
    library = next(iter(found), None)
    if library is None:
        print(f"{reason}no librdkafka is beside the package confluent-kafka; install its wheel")
        return None
    program = FOLDER / "passthrough"
    FOLDER.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [compiler, "-O2", "-std=gnu11", "-pthread", PEERS / "passthrough.c", library]
    try:
        subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
    except subprocess.CalledProcessError:
        print(f"{reason}{compiler} does not build {PEERS / 'passthrough.c'}")
        return None

    def start(installation: Installation, source: str, sink: str, log: Path) -> Program:
        settings = installation.settings
        return Program([program.absolute(), settings.bootstrap, source, sink, str(settings.partitions)], log)

    return Contender("Pass-through in C", start)


def quix() -> Contender | None:
    """Quix Streams, exactly once, with its RocksDB state and changelog."""
    python = environment("quixstreams")
    if python is None:
        return None

    def start(installation: Installation, source: str, sink: str, log: Path) -> Program:
        script = PEERS / "quix_peer.py"
        command: list[str | Path] = [python, script, installation.settings.bootstrap, source, sink]
        return Program([*command, _state_folder(sink)], log)

    return Contender("Quix Streams", start)


def faust() -> Contender | None:
    """Return Faust, exactly once, with a table; it gets a twentieth of the queries, because it is slow."""
    python = environment("faust-streaming")
    if python is None:
        return None

    def start(installation: Installation, source: str, sink: str, log: Path) -> Program:
        variables = {
            "PEER_BOOTSTRAP": installation.settings.bootstrap,
            "PEER_SOURCE": source,
            "PEER_SINK": sink,
            "PEER_FOLDER": str(_state_folder(sink)),
        }
        command: list[str | Path] = [python, PEERS / "faust_peer.py", "worker", "-l", "warn", "--without-web"]
        return Program(command, log, variables)

    return Contender("Faust", start, share=1 / 20, seconds=60.0)


def _state_folder(sink: str) -> Path:
    folder = (FOLDER / "state" / sink).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment(package: str) -> Path | None:
    """Return the interpreter of the peers' environment, with a package installed; None if it cannot be installed."""
    python = (ENVIRONMENT / "bin" / "python").absolute()
    try:
        if not python.exists():
            venv.create(ENVIRONMENT, with_pip=True)
        listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
        if package not in listed.split():
            print(f"Installing {package} into {ENVIRONMENT}")
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"{package} is left out: it cannot be installed into {ENVIRONMENT}; is the network reachable?")
        return None
    return python
