"""Measures each step of an answer separately, without Kafka."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from timeit import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.contenders import PEERS, environment
from benchmarks.installation import SOURCE_EPSILON, STREAM_EPSILON, THRESHOLD
from benchmarks.report import Figure, show_figures, write_json
from benchmarks.streams import fetched
from schemas import MAX_DEFINITION_BYTES, Amount, Answer, Control, Query
from schemas.wire import Codec, encode, struct
from sotto import Driver
from stream.privacy.mechanisms.above_threshold import decide_queries, query_sampler
from stream.privacy.mechanisms.private_values import Grid, value_of
from stream.privacy.noise.keyed_noise import event_words
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import TwoSidedGeometric
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor

BATCH = 5_000
REPEATS = 15
_control: Codec[Control] = Codec(Control, limit=MAX_DEFINITION_BYTES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time every step; the best of several repeats counts, because other work of the machine only adds time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument("--no-opendp", action="store_true", help="leave OpenDP out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    key = NoiseKey.generate()
    figures: list[Figure] = []
    for streams in (25, 5_000):
        driver = _driver(key, streams)
        if not figures:
            figures += _steps(driver, streams)
        figures.append(_processor(driver, key, streams))
    if not options.no_opendp:
        figures += _opendp(_calibrated(driver).rate)
    show_figures(f"Steps of an answer, batches of {BATCH:,}", figures)
    if options.json:
        write_json(options.json, figures)


def _driver(key: NoiseKey, streams: int) -> Driver:
    """An installation in memory with one partition and its streams open."""
    driver = Driver(key, partitions=1)
    driver.register(
        {
            "source": "bench",
            "neighbors": "add-remove",
            "epsilon": SOURCE_EPSILON,
            "kind": "values",
            "sensitivity": 1.0,
        }
    )
    mechanism = {"kind": "above_threshold", "threshold": THRESHOLD}
    for number in range(streams):
        driver.open(
            {"stream": f"stream-{number}", "source": "bench", "mechanism": mechanism, "epsilon": STREAM_EPSILON}
        )
    return driver


def _calibrated(driver: Driver) -> Any:
    """Return the sampler of the query noise of a driver's streams."""
    calibration = _control.decode(driver.records(driver.topics.control)[0].value).calibration
    if calibration.kind != "sparse_vector":
        raise AssertionError(f"a threshold stream has the calibration {calibration.kind}")
    return query_sampler(calibration)


def _steps(driver: Driver, streams: int) -> list[Figure]:
    records = _records(driver, streams, 0)
    payloads = [record.value or b"" for record in records]
    offsets = [record.offset for record in records]
    law = _calibrated(driver)
    two_sided = TwoSidedGeometric(law.rate)
    generator = np.random.default_rng(1)
    words = generator.integers(0, 2**64, (BATCH, two_sided.words), dtype=np.uint64)
    subkeys = [bytes([number % 256]) * 32 for number in range(BATCH)]
    decode_query: Callable[[bytes], Any] = msgspec.json.Decoder(struct(Query)).decode
    wire_answer: Any = struct(Answer)
    spent = struct(Amount)(STREAM_EPSILON / 2, 0.0)
    answer = wire_answer("query-123456", "stream-1", 4711, "below", None, None, None, spent, 1)
    margin = generator.integers(-1_000_000, -900_000, BATCH)
    rows = generator.integers(0, streams, BATCH)
    barrier, left = np.zeros(streams, dtype=np.int64), np.ones(streams, dtype=np.int64)

    halves = np.arange(BATCH) % 1000 + 0.5
    half_payloads = [
        payload.replace(b'"value":', b'"value":%.1f,"x":' % halves[n]) for n, payload in enumerate(payloads)
    ]

    def low(_: int) -> Any:
        return words[0]

    return [
        ("draw, one-sided", _best(lambda: law.draw(words[:, : law.words], low)) * 1e3, "ns"),
        ("draw, two-sided", _best(lambda: two_sided.draw(words, low)) * 1e3, "ns"),
        ("secret words", _best(lambda: event_words(subkeys, "queries", 0, offsets, payloads, law.words)), "µs"),
        ("decode", _best(lambda: [decode_query(payload) for payload in payloads]), "µs"),
        ("round whole numbers to steps", _best(lambda: _rounded(np.arange(BATCH))), "µs"),
        ("round half-grid decimals to steps", _best(lambda: _rounded(halves, half_payloads)), "µs"),
        ("decide", _best(lambda: decide_queries(margin, rows, barrier, left)), "µs"),
        ("encode", _best(lambda: [encode(answer) for _ in payloads]), "µs"),
    ]


def _rounded(values: npt.ArrayLike, payloads: Sequence[bytes] = ()) -> Any:
    """The steps of a batch of values; ``payloads`` hold them where a double does not tell."""
    return Grid(Decimal(1)).round_private(values, lambda place: value_of(payloads[place]))


def _processor(driver: Driver, key: NoiseKey, streams: int) -> Figure:
    """The whole processor as a worker runs it, fed one batch after another."""
    processor = QueryProcessor(driver.topics, 0, key, TableStore(bytes(32)))
    processor.restore(driver.records(driver.topics.control))
    processor.end_restore()
    batches = [fetched(_records(driver, streams, number * BATCH)) for number in range(REPEATS)]
    seconds = []
    for batch in batches:
        began = time.perf_counter()
        processor.process(processor.prepare(batch))
        seconds.append(time.perf_counter() - began)
    return f"processor, {streams:,} streams", BATCH / min(seconds), "events/s"


def _records(driver: Driver, streams: int, start: int) -> list[Record]:
    chosen = random.Random(start)
    records = []
    for number in range(start, start + BATCH):
        stream = f"stream-{chosen.randrange(streams)}".encode()
        value = b'{"id":"query-%d","stream":"%s","value":%.1f,"threshold":%.1f}' % (
            number,
            stream,
            100 * chosen.random(),
            THRESHOLD,
        )
        records.append(Record(driver.topics.queries, 0, number, 0, stream, value))
    return records


def _opendp(rate: Any) -> list[Figure]:
    python = environment("opendp")
    if python is None:
        return []
    command: list[str | Path] = [python, PEERS / "opendp_noise.py", str(float(1 / rate))]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [
        ("OpenDP integer Laplace, one by one", printed["scalar"], "ns"),
        ("OpenDP integer Laplace, in vectors", printed["vector"], "ns"),
    ]


def _best(step: Callable[[], object]) -> float:
    """Microseconds per event of a step that handles one batch."""
    return 1e6 * min(repeat(step, number=1, repeat=REPEATS)) / BATCH


if __name__ == "__main__":
    main()
