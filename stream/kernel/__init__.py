"""Loops over every event of a batch: compiled from C where it was built, in Python otherwise.

Both give the same bytes. Nothing here knows of Kafka, streams or privacy.
"""

from stream.kernel.columns import Column, Spans, Texts, joined, rows_of, spans_of, with_room, zeros
from stream.kernel.counting import Added, Bounded, added, bounded
from stream.kernel.fields import Fields, Values, digests
from stream.kernel.grouping import Groups, grouped
from stream.kernel.hashing import keyed_output, keyed_words
from stream.kernel.keys import Keys, with_rows
from stream.kernel.library import compiled, use
from stream.kernel.names import Names, Scanned
from stream.kernel.packing import Part, pack
from stream.kernel.records import RecordReader, RecordWriter
from stream.kernel.rows import LINE_BYTES, Layout, empty_rows

__all__ = [
    "LINE_BYTES",
    "Added",
    "Bounded",
    "Column",
    "Fields",
    "Groups",
    "Keys",
    "Layout",
    "Names",
    "Part",
    "RecordReader",
    "RecordWriter",
    "Scanned",
    "Spans",
    "Texts",
    "Values",
    "added",
    "bounded",
    "compiled",
    "digests",
    "empty_rows",
    "grouped",
    "joined",
    "keyed_output",
    "keyed_words",
    "pack",
    "rows_of",
    "spans_of",
    "use",
    "with_room",
    "with_rows",
    "zeros",
]
