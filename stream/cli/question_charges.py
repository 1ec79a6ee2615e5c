"""What a question with a wanted error is charged in a stream that is only planned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas import Calibration, EstimateCalibration, StreamSpec
from stream.accounting.costs import PARTS
from stream.accounting.prices import count_price, epsilon_of


@dataclass(frozen=True, slots=True)
class QuestionCharge:
    """What a count of a table's rows with an ``alpha`` is charged, by itself: so many ordinary ``charges``.

    ``tested`` where the stream's test keeps to it: it is then charged nothing, or a measurement's ε. It is not ``affordable`` where
    the whole grant does not pay for it.
    """

    alpha: float
    epsilon: float
    charges: float
    tested: bool
    affordable: bool

    def __str__(self) -> str:
        asked = f"in this stream a count of a table's rows with an alpha of {self.alpha:g}"
        if self.tested:
            return f"{asked} is charged nothing, or with a measurement ε {self.epsilon:.4g}"
        if not self.affordable:
            return f"{asked} is refused: its price is ε {self.epsilon:.4g}"
        return f"{asked} is charged ε {self.epsilon:.4g}, as much as {self.charges:.3g} ordinary charges"


def charge_of(spec: StreamSpec, calibration: Calibration, alpha: float) -> QuestionCharge | None:
    """The charge of a count; None where the stream takes no alpha."""
    price = count_price(spec.mechanism, calibration, alpha) if 0.0 < alpha < math.inf else None
    if price is None:
        return None
    tested = isinstance(calibration, EstimateCalibration) and alpha >= calibration.alpha
    parts = PARTS if tested else price.parts
    return QuestionCharge(
        alpha=alpha,
        epsilon=epsilon_of(calibration, parts),
        charges=parts / PARTS,
        tested=tested,
        affordable=parts <= calibration.cutoff * PARTS,
    )
