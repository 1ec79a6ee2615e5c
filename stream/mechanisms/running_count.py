"""The exact sums that a running count is made of, kept from window to window, and which windows count.

Nothing here draws noise or does any I/O; the noise of nodes and privacy: docs/proofs/running-count.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from stream.accounting.counting_trees import Node


def following(sums: Sequence[int], kept: int, count: int) -> list[int]:
    """The sums of the nodes of t windows, from those of t − 1 and the count of the t-th; ``kept`` is ``tree.kept(t)``.

    They are all that there is to remember of the windows before.
    """
    if len(sums) < kept:
        raise ValueError(f"{kept} sums should stay, and there are {len(sums)}")
    return [*sums[:kept], sum(sums[kept:]) + count]


def window_number(start_ms: int, first_ms: int, every_ms: int) -> int:
    """How many windows there are up to the one that begins at ``start_ms``, itself included; 0 if it is none of them.

    ``first_ms`` is the beginning of the first.
    """
    number, rest = divmod(start_ms - first_ms, every_ms)
    return number + 1 if rest == 0 and number >= 0 else 0


def node_name(group: int, node: Node) -> bytes:
    """The canonical bytes of a group's node: all that its noise hangs on beside the stream."""
    return b"".join(number.to_bytes(8, "big") for number in (group, node.start, node.end))
