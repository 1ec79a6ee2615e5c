"""What to say of a stream whose grant is used up."""

from __future__ import annotations

from typing import Final

from schemas import Calibration
from stream.processors.rejections import PRICE


def exhausted_reason(calibration: Calibration, cutoff: int) -> str:
    """Why a stream that has given all charged answers, ``cutoff`` with its extensions, does not answer any more."""
    match calibration.kind:
        case "sparse_vector":
            return f"exhausted: all {cutoff} 'above' answers of the cutoff are out"
        case "hypothesis":
            return f"exhausted: all {cutoff} updates of the hypothesis are used"
        case "estimate":
            return f"exhausted: all {cutoff} measurements of the estimate are made"
        case "running_count":
            return f"exhausted: the counts of all {calibration.steps} windows of the horizon are out"
        case _:
            return f"exhausted: all {cutoff} answers of the grant are given"


_UNPAID: Final = f"{PRICE}: query:"
"""The beginning of the refusal of a question that asks for no more than an ordinary charged answer."""


def says_exhausted(reason: str | None) -> bool:
    """Whether this is the reason of an answer or a stream whose grant pays for no ordinary charged answer any more."""
    return reason is not None and reason.startswith(("exhausted:", _UNPAID))
