"""Builds the JSON documents, calibrations and in-memory installations that the tests share.

Every builder has defaults for all required fields; keyword arguments replace or add fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from schemas import Source, SparseVectorCalibration, StreamSpec
from sotto import Driver
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.planning.plans import choose_calibration
from stream.tables.rows import Frame

KEY: Final = NoiseKey(bytes(range(32)))
"""The noise key of the tests' installations: their noise is reproducible."""

OTHER_KEY: Final = NoiseKey(bytes(32))
"""A second key, for tests in which keys differ."""

PEOPLE: Final[Mapping[str, Sequence[Any]]] = {
    "age": list(range(100)) * 2,
    "sex": ["F"] * 100 + ["M"] * 100,
}
"""The rows of the default table: each age from 0 to 99 once for each sex."""

Kind = Literal["values", "table", "events", "records"]

_SOURCES: Final[Mapping[str, Mapping[str, Any]]] = {
    "values": {"neighbors": "replace", "epsilon": 10.0, "sensitivity": 1.0},
    "table": {
        "neighbors": "add-remove",
        "epsilon": 10.0,
        "path": "people.csv",
        "attributes": {"age": 100, "sex": ["F", "M"]},
    },
    "events": {
        "topic": "ops.departures",
        "neighbors": "add-remove",
        "epsilon": 4.0,
        "person": "who",
        "time": "at",
        "attributes": {
            "origin": ["EWR", "JFK", "LGA"],
            "delay": {"kind": "integers", "minimum": 0, "maximum": 500},
        },
    },
    "records": {"epsilon": 10.0, "contributions": 1},
}
_MECHANISMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "above_threshold": {"threshold": 0.0, "cutoff": 1},
    "numeric_sparse": {"threshold": 0.0, "cutoff": 1},
    "histogram": {"attributes": ["age"]},
    "lazy_histogram": {"attributes": ["age"]},
    "sparse_project": {"attributes": ["age"]},
    "pmw": {"attributes": ["age"]},
    "sparse_pmw": {"attributes": ["age"]},
    "running_count": {"steps": 100},
}
_SOURCE: Final[TypeAdapter[Source]] = TypeAdapter(Source)


def source(name: str = "feed", kind: Kind = "values", **changes: Any) -> dict[str, Any]:
    """Return the definition of a source as a producer writes it."""
    return {"source": name, "kind": kind, **_SOURCES[kind], **changes}


def topic_source(neighbors: str, contribution: int, **attributes: Any) -> dict[str, Any]:
    """Return the definition of a live topic whose budget pays for everything."""
    return source(
        "live",
        "events",
        topic="ops",
        neighbors=neighbors,
        epsilon=1000.0,
        delta=0.1,
        contribution=contribution,
        attributes=attributes,
    )


def stream(
    name: str = "s",
    source_name: str = "feed",
    kind: str = "above_threshold",
    *,
    mechanism: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return the definition of a stream as a producer writes it.

    `mechanism` adds fields to the defaults of its kind. Its field `kind`, if any, replaces the argument.
    """
    given = mechanism or {}
    kind = given.get("kind", kind)
    fields = {"kind": kind, **_MECHANISMS.get(kind, {}), **given}
    return {"stream": name, "source": source_name, "epsilon": 1.0, "mechanism": fields, **changes}


def parse_source(document: Mapping[str, Any]) -> Any:
    """Return the model of a source; its kind determines the class."""
    return _SOURCE.validate_python(dict(document))


def parse_stream(document: Mapping[str, Any]) -> StreamSpec:
    """Return the model of a stream."""
    return StreamSpec.model_validate(dict(document))


def parse_spec(kind: str = "above_threshold", **fields: Any) -> StreamSpec:
    """Return the model of a stream of this kind; fields that ``StreamSpec`` lacks go to its mechanism."""
    changes = {name: fields.pop(name) for name in list(fields) if name in StreamSpec.model_fields}
    return parse_stream(stream(kind=kind, mechanism=fields, **changes))


def calibration(spec: StreamSpec | None = None, **changes: Any) -> SparseVectorCalibration:
    """Return the planned calibration of a sparse-vector stream, with some fields replaced."""
    planned = choose_calibration(spec or parse_stream(stream()), SourceFacts())
    assert isinstance(planned, SparseVectorCalibration)
    return planned.model_copy(update=changes)


def installation(
    *streams: Mapping[str, Any],
    sources: Iterable[Mapping[str, Any]] | None = None,
    rows: Mapping[str, Any] | None = None,
    key: NoiseKey = KEY,
    partitions: int = 1,
) -> Driver:
    """Return an in-memory installation with these sources and streams.

    Without `sources`, each source that a stream names is registered with the default fields: `people` as the table
    above, any other as a source of values. `rows` gives the columns of each table by the name of its source.
    """
    driver = Driver(key, partitions=partitions)
    tables: dict[str, Frame] = {"people": PEOPLE, **(rows or {})}
    if sources is None:
        names = dict.fromkeys(one["source"] for one in streams)
        sources = [source(name, "table" if name in tables else "values") for name in names]
    for one in sources:
        driver.register(one, tables[one["source"]] if one["kind"] == "table" else None)
    for one in streams:
        driver.open(one, acknowledge=True)
    return driver
