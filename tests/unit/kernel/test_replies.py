"""Compares checkpoints, charges and statuses that workers write with the models of the contract."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas import MAX_EVENT_BYTES, STREAM_STATES, Amount, Charge, Checkpoint, Position, StreamStatus
from schemas.wire import Codec
from stream.processing.protocol import Outputs
from stream.worker.output_encoding import OutputEncoder
from tests.kernels import kernel, use_kernel
from tests.unit.worker.batches import DRIVER, new_worker


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("compiled", [False, True])
def test_replies_match_models_with_and_without_kernel(seed: int, *, compiled: bool) -> None:
    """Writes the checkpoint, charge and status of streams in every state as the models are encoded."""
    chance = random.Random(seed)
    streams = new_worker().streams
    columns, slots = streams.columns, list(range(len(streams)))
    chance.shuffle(slots)
    for slot in slots:
        columns.state[slot] = chance.randrange(len(STREAM_STATES))
        columns.refused[slot] = chance.random() < 0.4
        columns.answered[slot] = chance.choice([0, 1, 2**40])
        columns.tops[slot] = chance.choice([0, 1, 1])
        columns.last_offset[slot] = chance.choice([-1, 0, 2**50])
        columns.due[slot] = chance.choice([0, 7])
        columns.surplus[slot] = chance.choice([0, 0, 5, -3]) if seed else 0
        if seed % 2 and chance.random() < 0.4:
            streams.life.last_turns[slot] = chance.choice([1, 2**61])
        if chance.random() < 0.4:
            streams.life.reasons[slot] = chance.choice(['table: "gone"', "é\n", "halted"])
    charges: Codec[Charge] = Codec(Charge, limit=MAX_EVENT_BYTES)
    statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_EVENT_BYTES)
    expected: dict[str, list[Any]] = {"state": [], "charges": [], "status": []}
    for slot in slots:
        name, incarnation, terms = streams.names[slot], streams.incarnations[slot], streams.terms_at(slot)
        state, reason = STREAM_STATES[columns.state[slot]], streams.life.reasons.get(slot)
        counts, surplus = (int(columns.answered[slot]), int(columns.tops[slot])), int(columns.surplus[slot])
        offset, source = int(columns.last_offset[slot]), terms.source.source
        figures = (incarnation, state, *counts, offset, reason, int(columns.due[slot]), surplus)
        turn = streams.life.last_turns.get(slot, 0)
        kept = Checkpoint(**dict(zip(Checkpoint.model_fields, (*figures, turn), strict=True)))
        figured = {
            "stream": name,
            "source": source,
            "incarnation": incarnation,
            "state": state,
            "answered": counts[0],
            "tops": counts[1],
            "spent": Amount.model_validate(msgspec.to_builtins(streams.spent(slot))),
            "surplus": surplus,
        }
        charged = Charge.model_construct(**figured, reason=reason)
        shown = StreamStatus.model_construct(
            **figured,
            tops_left=streams.shown_answers_left(slot),
            alpha=terms.calibration.alpha,
            position=Position.model_construct(topic=DRIVER.topics.queries, partition=0, offset=offset),
            refused=streams.reason(slot) if columns.refused[slot] else None,
        )
        expected["state"].append((name.encode(), kept.model_dump_json().encode(), ()))
        expected["charges"].append((source.encode(), charges.encode(charged), ()))
        expected["status"].append((name.encode(), statuses.encode(shown), ()))
    outputs, encoder, places = Outputs(), OutputEncoder(DRIVER.topics, 0, streams), np.array(slots, dtype=np.intp)
    with use_kernel(kernel() if compiled else None):
        encoder.write_checkpoints(outputs, places)
        encoder.write_charges(outputs, places)
        encoder.write_status(outputs, places)
    topics = DRIVER.topics
    assert list(outputs.messages[topics.state, 0]) == expected["state"]
    assert list(outputs.messages[topics.charges, 0]) == expected["charges"]
    assert list(outputs.messages[topics.status, 0]) == expected["status"]
