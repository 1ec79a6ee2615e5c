"""What the budget service fixes when a stream opens, and how it tells the workers."""

from __future__ import annotations

import math

from blake3 import blake3

from schemas import (
    Calibration,
    Control,
    Source,
    StreamClosed,
    StreamHalted,
    StreamOpened,
    StreamSpec,
    TableSource,
    ValuesSource,
)
from stream.accounting.ledger import Account, Grant, RefusedError
from stream.accounting.planner import plan_stream, sensitivity_steps


def plan_for(spec: StreamSpec, source: Source) -> Calibration:
    """Fix a stream's constants from public parameters only."""
    if isinstance(source, ValuesSource):
        steps, grid = sensitivity_steps(source.sensitivity, source.grid), source.grid
    else:
        # One person is one row, and moves a count by one.
        steps, grid = 1, 1.0
    if isinstance(source, TableSource) and spec.mechanism.monotone and source.neighbors == "replace":
        raise RefusedError(
            "mechanism.monotone: counts are not monotone when neighbours replace a row; leave it false, or register "
            "the source with neighbors 'add-remove'",
        )
    calibration = plan_stream(spec, sensitivity_steps=steps, grid=grid)
    if not math.isfinite(calibration.alpha):
        raise RefusedError("no finite accuracy can be promised; raise epsilon or beta, or lower the cutoff")
    return calibration


def definition_digest(spec: StreamSpec, account: Account, calibration: Calibration) -> str:
    """The digest that a stream's noise is bound to, for good."""
    parts = [
        spec.model_dump_json().encode(),
        account.source.model_dump_json().encode(),
        (account.fingerprint or "").encode(),
        calibration.model_dump_json().encode(),
    ]
    return blake3(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def control_event(account: Account, grant: Grant) -> Control:
    """A stream's whole definition, with what its worker may do now."""
    opened = StreamOpened(
        spec=grant.spec,
        source=account.source,
        identity=grant.identity,
        fingerprint=account.fingerprint,
        calibration=grant.calibration,
    )
    if grant.ending is None:
        return opened
    ended = StreamClosed if grant.ending == "closed" else StreamHalted
    return ended(**{**dict(opened), "kind": grant.ending, "reason": grant.reason or grant.ending})
