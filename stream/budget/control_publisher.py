"""Builds and publishes control events: definitions, ends and retirements of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from schemas import (
    Control,
    RetiredAnswer,
    RetiredStreams,
    StreamClosed,
    StreamHalted,
    StreamOpened,
)
from schemas.codecs import control_codec, retired_streams_codec
from stream.digest_table import DIGEST_BYTES
from stream.privacy.composition.costs import ordinary_charges_left, shown_spending
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.retirement import name_digest
from stream.processing.control_order import RETIRED_PREFIX
from stream.processing.dead_letters import exhausted_reason
from stream.processing.protocol import Message, Outputs
from stream.processing.topic_names import Topics, partition_of


def build_control_event(account: Account, grant: Grant) -> Control:
    """Return the control event with a stream's definition; its kind says if the stream may answer."""
    spec, identity = grant.decode_opening()
    opened = StreamOpened(
        spec=spec,
        source=account.source,
        identity=identity,
        fingerprint=account.fingerprint,
        calibration=grant.calibration,
        extensions=grant.extensions,
        version=account.version,
    )
    if grant.ending is None and grant.state == "open":
        return opened
    ending = grant.ending or "halted"
    ended = StreamClosed if ending == "closed" else StreamHalted
    return ended(**{**dict(opened), "kind": ending, "reason": grant.reason or ending})


def build_retired_answer(account: Account, grant: Grant) -> RetiredAnswer:
    """Return the fields of the answers that a worker gives for an ended stream."""
    figures = (grant.answered, grant.tops, grant.surplus)
    return RetiredAnswer(
        # A stream that is halted after its last charged answer stays exhausted.
        reason=exhausted_reason(grant.calibration, grant.cutoff)
        if grant.state == "exhausted"
        else grant.reason or grant.state,
        spent=shown_spending(grant.calibration, account.source, *figures, grant.extensions),
        tops_left=ordinary_charges_left(grant.cutoff, grant.tops, grant.surplus) if grant.cutoff else None,
    )


def build_retired_record(retired: Sequence[tuple[str, RetiredAnswer]]) -> RetiredStreams:
    """Return the record that replaces the definitions of these streams."""
    places: dict[RetiredAnswer, int] = {}
    for _, answer in retired:
        places.setdefault(answer, len(places))
    return RetiredStreams(
        names=b"".join(name_digest("stream", name) for name, _ in retired).hex(),
        answers=tuple(places),
        answer_of=tuple(places[answer] for _, answer in retired),
    )


_MAX_RETIRED_PER_RECORD: Final = 128


class ControlPublisher:
    """Publishes control events to the workers and feeds."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def publish_control(self, account: Account, grant: Grant, outputs: Outputs) -> None:
        """Publish a stream's control event to the worker of its partition."""
        control = build_control_event(account, grant)
        key = grant.stream.encode()
        message: Message = (key, control_codec.encode(control), ())
        outputs.add(self._topics.control, partition_of(key, self._topics.partitions), message)

    def publish_retired(self, retired: Mapping[str, RetiredAnswer], outputs: Outputs) -> None:
        """Publish the digests of retired streams, and then delete their definitions."""
        by_partition: dict[int, list[str]] = {}
        for name in retired:
            partition = partition_of(name.encode(), self._topics.partitions)
            by_partition.setdefault(partition, []).append(name)
        for partition, members in by_partition.items():
            for start in range(0, len(members), _MAX_RETIRED_PER_RECORD):
                names = members[start : start + _MAX_RETIRED_PER_RECORD]
                record = build_retired_record([(name, retired[name]) for name in names])
                key = RETIRED_PREFIX + record.names[: 2 * DIGEST_BYTES].encode()
                outputs.add(self._topics.control, partition, (key, retired_streams_codec.encode(record), ()))
                outputs.extend(self._topics.control, partition, [(name.encode(), None, ()) for name in names])
