"""The fields of a slot are in one row, and keep their values."""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import LINE_BYTES, RowLayout, empty_rows, grow_to, mapped_zeros
from stream.privacy.noise.keys import NoiseKey
from stream.worker.families.sparse_vector_family import RoundValues
from stream.worker.hosted_streams import HostedStreams
from stream.worker.stream_columns import StreamColumns
from tests.kernels import kernel, use_kernel

RECORD = np.dtype(
    {
        "names": ["whole", "half", "byte", "flag"],
        "formats": ["<i8", "<i4", "u1", "?"],
        "offsets": [8, 20, 30, 31],
        "itemsize": LINE_BYTES,
    }
)


LAYOUT = RowLayout(RECORD)


@pytest.mark.parametrize("count", [0, 1, 1000, 400_000, 700_001])
def test_mapped_zeros_are_writable_and_keep_content_when_grown(count: int) -> None:
    made = mapped_zeros((count, 2), np.int64)
    assert (made.shape, made.dtype, made.any()) == ((count, 2), np.int64, False)
    made[-1:] = 7
    grown = grow_to(made, count + 100)
    assert (len(grown) >= count + 100, grown[:count].tobytes()) == (True, made.tobytes())
    assert not grown[count:].any()


def test_mapped_zeros_work_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "no large pages")

    monkeypatch.setattr("stream.kernel.byte_columns.mmap.mmap", Without)
    assert mapped_zeros((1 << 20,), np.int64).sum() == 0


@given(
    content=st.binary(min_size=LINE_BYTES, max_size=40 * LINE_BYTES),
    picks=st.lists(st.integers(0, 2**30), max_size=90),
)
@settings(deadline=None, max_examples=50)
def test_gather_gives_same_fields_with_and_without_kernel(content: bytes, picks: list[int]) -> None:
    count = len(content) // LINE_BYTES
    rows = empty_rows(count, LINE_BYTES)
    rows[:] = np.frombuffer(content[: count * LINE_BYTES], dtype=np.uint8).reshape(count, -1)
    rows[:, 31] &= 1
    slots = np.array([pick % count for pick in picks], dtype=np.int64)
    with use_kernel(kernel()):
        ours = LAYOUT.gather(rows, RECORD.names or (), slots)
    with use_kernel(None):
        theirs = LAYOUT.gather(rows, RECORD.names or (), slots)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


@given(count=st.integers(1, 300), data=st.data())
@settings(deadline=None, max_examples=50)
def test_scatter_writes_same_fields_with_and_without_kernel(count: int, data: st.DataObject) -> None:
    slots = np.array(data.draw(st.lists(st.integers(0, count - 1), unique=True)), dtype=np.int64)
    names = data.draw(st.lists(st.sampled_from(RECORD.names or ()), unique=True, min_size=1))
    drawn = data.draw(st.lists(st.integers(0, 255), min_size=len(slots), max_size=len(slots)))
    # The columns have the types of the fields, whatever the types of the given values.
    columns = {name: np.array(drawn, dtype=np.int64) for name in names}
    written = []
    for library in (kernel(), None):
        rows = empty_rows(count, LINE_BYTES)
        rows[:] = np.arange(count * LINE_BYTES, dtype=np.uint64).astype(np.uint8).reshape(count, -1) & 1
        with use_kernel(library):
            LAYOUT.scatter(rows, columns, slots)
            for name, found in zip(names, LAYOUT.gather(rows, names, slots), strict=True):
                assert (found == columns[name].astype(found.dtype)).all()
        written.append(rows.tobytes())
    assert written[0] == written[1]


def columns_of(kind: type[Any]) -> Any:
    return kind() if kind is StreamColumns else kind(HostedStreams(NoiseKey(bytes(32))))


@pytest.mark.parametrize(("kind", "lines"), [(StreamColumns, 2), (RoundValues, 1)])
def test_stream_row_occupies_few_cache_lines(kind: type[Any], lines: int) -> None:
    columns = columns_of(kind)
    columns.grow(1000)
    assert columns.rows.shape == (1024, lines * LINE_BYTES)
    assert columns.rows.ctypes.data % LINE_BYTES == 0
    for name, array in vars(columns).items():
        if isinstance(array, np.ndarray) and name != "rows" and name not in kind.SEPARATE_ARRAYS:
            offset = array.ctypes.data - columns.rows.ctypes.data
            assert array.strides[0] == lines * LINE_BYTES, name
            assert 0 <= offset < lines * LINE_BYTES, name
            assert offset % array.dtype.alignment == 0, name


@pytest.mark.parametrize("is_compiled", [True, False])
def test_stream_columns_keep_values_through_growth_and_gather(*, is_compiled: bool) -> None:
    with use_kernel(kernel() if is_compiled else None):
        assert (compiled_kernel() is not None) == is_compiled
        columns = StreamColumns()
        columns.tops[:64] = np.arange(64)
        columns.cutoff[:64] = 100
        columns.status_changed[5] = True
        columns.incarnation[7] = np.frombuffer(b"i" * 32, dtype=np.uint8)
        columns.grow(200)
        picked = columns.gather(np.array([63, 5, 150, 5]))
        assert picked.tops.tolist() == [63, 5, 0, 5]
        assert picked.tops_left.tolist() == [37, 95, 0, 95]
        assert columns.status_changed[:8].tolist() == [False] * 5 + [True] + [False] * 2
        assert list(columns.byte_spans("incarnation", np.array([7, 8]))) == [b"i" * 32, bytes(32)]
        slots = np.array([63, 5])
        before = columns.gather(slots)
        after = columns.write_entries(slots, before, {"tops": np.array([64, 6]), "state": np.array([1, 0])})
        assert (after.tops.tolist(), after.state.tolist(), after.cutoff.tolist()) == ([64, 6], [1, 0], [100, 100])
        assert before.tops.tolist() == [63, 5]
        again = columns.gather(slots)
        assert (again.tops.tolist(), again.state.tolist(), again.cutoff.tolist()) == ([64, 6], [1, 0], [100, 100])
