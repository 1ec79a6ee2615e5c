"""Retired streams: digests before deletions on control, and one answer to all questions."""

from __future__ import annotations

from collections.abc import Iterator

from schemas import MAX_RECORD_BYTES, RetiredAnswer, RetiredStreams
from schemas.wire import Codec
from stream.privacy.ledger.retirement import NameDigests, name_digest, split_digests
from stream.processing.protocol import RETIRED_PREFIX
from stream.processing.topic_names import Topics
from tests.chaos.replay import Logs, answers_codec

_codec: Codec[RetiredStreams] = Codec(RetiredStreams, limit=MAX_RECORD_BYTES)


def check_retired(logs: Logs, topics: Topics, retired: NameDigests, *, same_version: bool = True) -> list[str]:
    """Check that control has a retired stream's digest before its deletion, and that later questions get the digest's answer.

    Answers of a halted stream may differ until the worker has ended it; after the first answer as in control, all must be equal.
    Without ``same_version``, workers of an earlier version gave some of the answers, and worded reasons differently.
    """
    violations: list[str] = []
    for partition in range(topics.partitions):
        control = logs.get((topics.control, partition), ())
        answer_of = dict[bytes, RetiredAnswer]()
        for record in control:
            key = record.key or b""
            if key.startswith(RETIRED_PREFIX):
                answer_of.update(_answers(_codec.decode(record.value)))
            elif record.value is None and name_digest("stream", key.decode()) not in answer_of:
                violations.append(f"control deletes {key.decode()} and has not retired it")
        names = {(record.key or b"").decode() for record in control if not (record.key or b"").startswith(b"@")}
        violations += [
            f"{name} is not retired in both the ledger and control"
            for name in sorted(names)
            if retired.has("stream", name) != (name_digest("stream", name) in answer_of)
        ]
        violations += _unlike_answers(logs, topics, partition, answer_of, same_version=same_version)
    return violations


def _answers(record: RetiredStreams) -> Iterator[tuple[bytes, RetiredAnswer]]:
    for digest, place in zip(split_digests(record.names), record.answer_of, strict=True):
        yield digest, record.answers[place]


def _unlike_answers(
    logs: Logs, topics: Topics, partition: int, answer_of: dict[bytes, RetiredAnswer], *, same_version: bool
) -> Iterator[str]:
    seen: set[str] = set()
    for record in logs.get((topics.answers, partition), ()):
        answer = answers_codec.decode(record.value)
        wanted = answer_of.get(name_digest("stream", answer.stream)) if answer.outcome != "rejected" else None
        if wanted is None:
            continue
        is_alike = (answer.spent, answer.tops_left) == (wanted.spent, wanted.tops_left)
        has_same_reason = not same_version or answer.reason == wanted.reason
        if answer.outcome == "halted" and is_alike and has_same_reason:
            seen.add(answer.stream)
        elif answer.stream in seen:
            yield f"{answer.stream} is retired and answered {answer.id} otherwise than before"
