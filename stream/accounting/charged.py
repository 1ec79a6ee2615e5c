"""How many charged answers a stream's grant pays for, with its extensions; whoever only looks at grants needs no more."""

from __future__ import annotations

from schemas import Calibration, Extensions


def charged_answers(calibration: Calibration, extensions: Extensions) -> int:
    """How many charged answers a stream's grant pays for in all; 0 where one charge pays for all answers."""
    return calibration.cutoff + sum(extension.answers for extension in extensions)


def extended_beta(calibration: Calibration, extensions: Extensions) -> float:
    """With which probability a promise may fail for all charged answers that were granted: β for each ``cutoff`` of them.

    At least 1 means that nothing is promised for all of them; for the first ``cutoff`` the promise is what it was.
    """
    if not extensions:
        return calibration.beta
    return calibration.beta * charged_answers(calibration, extensions) / calibration.cutoff
