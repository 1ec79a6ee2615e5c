"""Runs loops over the events of a batch: in the kernel, compiled from C, or without it in Python.

Both give the same bytes. The kernel does not depend on Kafka, streams or privacy; ``library`` loads it.
"""

from stream.kernel.array_operations import (
    EqualRows,
    Part,
    RecordReader,
    RecordWriter,
    crc32c,
    group_rows,
    keyed_output,
    keyed_words,
    pack_rows,
)
from stream.kernel.byte_columns import (
    LINE_BYTES,
    Column,
    RowLayout,
    Spans,
    Texts,
    concatenate_spans,
    empty_rows,
    grow_to,
    mapped_zeros,
    rows_of,
    spans_of,
)
from stream.kernel.json_fields import Fields, ScannedQueries, SlotNames, Values, digests
from stream.kernel.key_numbering import (
    AddedCounts,
    BoundedCounts,
    KeyNumbering,
    add_counts,
    count_up_to_bound,
    grow_in_place,
)
from stream.kernel.library import compiled_kernel, use_kernel

__all__ = [
    "LINE_BYTES",
    "AddedCounts",
    "BoundedCounts",
    "Column",
    "EqualRows",
    "Fields",
    "KeyNumbering",
    "Part",
    "RecordReader",
]
__all__ += ["RecordWriter", "RowLayout", "ScannedQueries", "SlotNames", "Spans", "Texts", "Values", "add_counts"]
__all__ += [
    "compiled_kernel",
    "concatenate_spans",
    "count_up_to_bound",
    "crc32c",
    "digests",
    "empty_rows",
    "group_rows",
    "keyed_output",
]
__all__ += [
    "grow_in_place",
    "grow_to",
    "keyed_words",
    "mapped_zeros",
    "pack_rows",
    "rows_of",
    "spans_of",
    "use_kernel",
]
