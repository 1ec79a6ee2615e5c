"""Names of slots that are replaced are found by the kernel."""

from __future__ import annotations

import pytest

from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import spans_of
from stream.kernel.json_fields import SlotNames

pytestmark = pytest.mark.skipif(compiled_kernel() is None, reason="there is no compiled kernel")


def slots_of(names: SlotNames, *asked: str) -> list[int | None]:
    """Return the slots in which the kernel finds plain queries to these streams."""
    events = spans_of([b'{"id":"q","stream":"%s","value":1}' % name.encode() for name in asked])
    scanned = names.scan(events, 1 << 14)
    assert scanned is not None
    return [int(slot) if read else None for read, slot in zip(scanned.is_read, scanned.slots, strict=True)]


def test_replaced_names_are_found_in_their_slots() -> None:
    """This holds whether the table had the earlier name or not, and also after more replacements than the table has places."""
    names = SlotNames()
    names.texts.extend([b"s%d" % slot for slot in range(100)])
    names.replace(7, b"early")
    assert slots_of(names, "early", "s8", "nobody") == [7, 8, None]
    for turn in range(1000):
        names.replace(turn % 100, b"turn-%d" % turn)
    last = [f"turn-{turn}" for turn in range(900, 1000)]
    assert slots_of(names, *last) == list(range(100))
    names.texts.extend([b"one more"])
    assert slots_of(names, "one more", "turn-950") == [100, 50]
