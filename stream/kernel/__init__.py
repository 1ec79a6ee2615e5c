"""Loops over every event of a batch: compiled from one file of C where it was built, in Python otherwise.

Both give the same bytes. Nothing here knows of Kafka, streams or privacy.
"""

from stream.kernel.columns import Column, Spans, Texts, joined, rows_of, spans_of, with_room
from stream.kernel.hashing import keyed_output, keyed_words
from stream.kernel.library import compiled, use
from stream.kernel.names import Names, Scanned
from stream.kernel.packing import Part, pack
from stream.kernel.records import RecordReader, RecordWriter

__all__ = [
    "Column",
    "Names",
    "Part",
    "RecordReader",
    "RecordWriter",
    "Scanned",
    "Spans",
    "Texts",
    "compiled",
    "joined",
    "keyed_output",
    "keyed_words",
    "pack",
    "rows_of",
    "spans_of",
    "use",
    "with_room",
]
