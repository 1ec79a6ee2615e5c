"""Runs processors on records as an engine does."""

from __future__ import annotations

from collections.abc import Sequence

from stream.processing.protocol import Outputs, Processor, RecordLike


def process_records(processor: Processor, records: Sequence[RecordLike]) -> Outputs:
    """Prepare and process all records, in as many steps as the processor needs."""
    outputs = Outputs()
    while True:
        batch = processor.prepare(records)
        step = processor.process(batch)
        if len(batch.records) == len(records) and not outputs:
            return step
        for topic, partition, messages in step:
            outputs.extend(topic, partition, messages)
        outputs.busy += step.busy
        records = records[len(batch.records) :]
        if not records:
            return outputs
