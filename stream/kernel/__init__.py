"""Runs loops over the events of a batch: in the kernel, compiled from C, or without it in Python.

Both give the same bytes. The kernel does not depend on Kafka, streams or privacy; ``library`` loads it.
"""

from stream.kernel.array_operations import (
    EqualRows,
    Part,
    RecordReader,
    RecordWriter,
    grouped,
    keyed_output,
    keyed_words,
    pack,
)
from stream.kernel.byte_columns import (
    LINE_BYTES,
    Column,
    RowLayout,
    Spans,
    Texts,
    empty_rows,
    joined,
    rows_of,
    spans_of,
    with_room,
    zeros,
)
from stream.kernel.json_fields import Fields, Scanned, SlotNames, Values, digests
from stream.kernel.key_tables import Added, Bounded, Keys, add_counts, count_up_to_bound, with_rows
from stream.kernel.library import compiled, use

__all__ = ["LINE_BYTES", "Added", "Bounded", "Column", "EqualRows", "Fields", "Keys", "Part", "RecordReader"]
__all__ += ["RecordWriter", "RowLayout", "Scanned", "SlotNames", "Spans", "Texts", "Values", "add_counts"]
__all__ += ["compiled", "count_up_to_bound", "digests", "empty_rows", "grouped", "joined", "keyed_output"]
__all__ += ["keyed_words", "pack", "rows_of", "spans_of", "use", "with_room", "with_rows", "zeros"]
