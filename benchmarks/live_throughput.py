"""Events per second of one feed process, and of its peers, on a topic that is full already."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.contenders import KAFKA_STREAMS, PEERS, SOTTO, STREAMS_JARS, environment
from benchmarks.installation import FOLDER, create_topic, delete_topics
from benchmarks.java_programs import java_classpath
from benchmarks.live_course import Course, Positions
from benchmarks.live_job import Job, People, fill, live_topic, open_streams
from benchmarks.programs import Program, ProgramError, service
from stream.kafka.kafka_programs import java_launcher
from stream.settings import Settings

PEOPLE: Final = 200_000
TOPIC: Final = "live-events"


@dataclass(frozen=True)
class Peer:
    """Another stream processor: a function that starts it for a job, from a topic to a sink, and its share of the events."""

    name: str
    start: Callable[[Settings, Job, str, Path], Program]
    share: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """The figures of one contender in one round."""

    contender: str
    round: int
    events: int
    rate: float
    """Events per second over the second half."""
    cpu_microseconds: float
    """Processor time per event over the second half, without the broker's."""
    startup_seconds: float
    half_rss: int
    most_rss: int
    load: float
    """Load average of the machine just before the run."""


def peers(names: Sequence[str]) -> list[Peer]:
    """Return the peers that can be run here."""
    makers = {"kafka-streams": _kafka_streams, "quix": _quix, "faust": _faust}
    return [peer for name in names if name in makers and (peer := makers[name]()) is not None]


async def compare(base: Settings, job: Job, events: int, rounds: int, others: Sequence[Peer]) -> list[Run]:
    """Let all contenders process the same events in turn; every other round has the reverse order."""
    begins = int(1000 * time.time())
    await live_topic(base, TOPIC)
    await fill(base, TOPIC, People(PEOPLE, base.partitions, job.groups), events)
    runs: list[Run] = []
    for number in range(rounds):
        turns: list[Peer | None] = [None, *others]
        for peer in turns if number % 2 == 0 else reversed(turns):
            load = os.getloadavg()[0]
            name = peer.name if peer else SOTTO
            try:
                course = await (
                    _peer(base, job, peer, events, number) if peer else _sotto(base, job, begins, events, number)
                )
            except (ProgramError, TimeoutError) as error:
                print(f"round {number + 1}: {name} failed: {error}", flush=True)
                continue
            runs.append(_run(name, number, course, load))
            print(f"round {number + 1}: {name} {runs[-1].rate:,.0f} events/s, load {load:.1f}", flush=True)
    shutil.rmtree(FOLDER / "state", ignore_errors=True)
    await delete_topics(base, TOPIC)
    return runs


def _run(name: str, number: int, course: Course, load: float) -> Run:
    return Run(
        contender=name,
        round=number,
        events=course.samples[-1].events,
        rate=course.late_rate,
        cpu_microseconds=1e6 * course.late_cpu,
        startup_seconds=course.startup,
        half_rss=course.half_rss,
        most_rss=course.most_rss,
        load=load,
    )


async def _sotto(base: Settings, job: Job, begins: int, events: int, number: int) -> Course:
    opened = await open_streams(base, f"live-{job.conditions}-{number}", TOPIC, job, begins)
    log = FOLDER / "logs" / f"feed-{job.conditions}-{number}.log"
    async with Positions(opened.settings, opened.group, TOPIC) as positions:
        with service("feed", opened.settings, opened.noise_key, log) as program:
            return await positions.follow(program, events, 600.0)


async def _peer(base: Settings, job: Job, peer: Peer, events: int, number: int) -> Course:
    sink = f"{peer.name.lower().replace(' ', '-')}-{job.conditions}-{number}"
    await create_topic(base, sink)
    async with Positions(base, sink, TOPIC) as positions:
        with peer.start(base, job, sink, FOLDER / "logs" / f"live-{sink}.log") as program:
            course = await positions.follow(program, int(peer.share * events), peer.seconds)
    await delete_topics(base, sink)
    return course


def _state(sink: str) -> Path:
    folder = (FOLDER / "state" / sink).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _kafka_streams() -> Peer | None:
    compiler = shutil.which("javac")
    if compiler is None:
        print("Kafka Streams is left out: there is no javac on PATH; install a JDK of version 17 or later")
        return None
    classpath, classes = java_classpath(STREAMS_JARS), FOLDER / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [compiler, "-nowarn", "-cp", classpath, "-d", classes, PEERS / "LivePeer.java"]
    subprocess.run(command, check=True)

    def start(settings: Settings, job: Job, sink: str, log: Path) -> Program:
        quiet = FOLDER / "live-log.properties"
        quiet.write_text(
            "rootLogger.level = warn\nrootLogger.appenderRef.console.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\n",
        )
        parts: list[str | Path] = [java_launcher(), f"-Dlog4j2.configurationFile={quiet.absolute()}"]
        parts += ["-cp", f"{classpath}{os.pathsep}{classes.absolute()}", "LivePeer"]
        parts += [settings.bootstrap, TOPIC, sink, _state(sink), *map(str, job.words)]
        return Program(parts, log)

    return Peer(KAFKA_STREAMS, start, share=1.0, seconds=400.0)


def _quix() -> Peer | None:
    python = environment("quixstreams")
    if python is None:
        return None

    def start(settings: Settings, job: Job, sink: str, log: Path) -> Program:
        words = ",".join(map(str, job.words))
        script = PEERS / "live_quix.py"
        return Program([python, script, settings.bootstrap, TOPIC, sink, _state(sink), words], log)

    return Peer("Quix Streams", start, share=1 / 5, seconds=120.0)


def _faust() -> Peer | None:
    python = environment("faust-streaming")
    if python is None:
        return None

    def start(settings: Settings, job: Job, sink: str, log: Path) -> Program:
        variables = {
            "PEER_BOOTSTRAP": settings.bootstrap,
            "PEER_SOURCE": TOPIC,
            "PEER_SINK": sink,
            "PEER_FOLDER": str(_state(sink)),
            "PEER_PARTITIONS": str(settings.partitions),
            "PEER_JOB": ",".join(map(str, job.words)),
        }
        return Program([python, PEERS / "live_faust.py", "worker", "-l", "warn", "--without-web"], log, variables)

    return Peer("Faust", start, share=1 / 40, seconds=60.0)
