"""Reads what binds of several witnesses, and begins a new generation of anchors in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas import TrailHead
from stream.witnesses.anchor import Anchor, Witness, choose_time, newest_generation


def read_binding_anchors(witnesses: Sequence[Witness], installation: str) -> list[list[Anchor]]:
    """Return each witness's anchors of its newest generation: only these bind.

    Raises:
        WitnessError: a witness cannot be read.
    """
    return [newest_generation(one.read_newest(installation)) for one in witnesses]


def begin_generation(
    witnesses: Sequence[Witness],
    installation: str,
    head: TrailHead,
    reason: str,
    ends: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Write an anchor from which on only itself and later ones bind, to each witness.

    Write it before the topics change: if a step fails, services refuse to grant until it is repeated.

    Raises:
        WitnessError: a witness cannot be read or written.
    """
    binding = read_binding_anchors(witnesses, installation)
    latest = max((one[0].generation for one in binding if one), default=0)
    anchor = Anchor(
        installation=installation,
        generation=latest + 1,
        written=choose_time(max((one.written for found in binding for one in found), default=0)),
        head=head,
        ends=dict(ends or {}),
        reason=reason,
    )
    for witness in witnesses:
        witness.write(anchor)
