"""Simulates a stream on a public table before it is opened: answers, errors and cost.

The reported errors are exact, so a simulation must never read private data; see ``require_public``.
"""

from stream.dev.simulation.simulation_inputs import (
    SYNTHETIC_LAW,
    SimulationError,
    read_questions,
    require_public,
    synthetic,
)
from stream.dev.simulation.simulation_run import (
    ErrorMeasurement,
    ErrorSummary,
    Run,
    RunEnding,
    SimulationReport,
    simulate,
)

__all__ = [
    "SYNTHETIC_LAW",
    "ErrorMeasurement",
    "ErrorSummary",
    "Run",
    "RunEnding",
    "SimulationError",
    "SimulationReport",
    "read_questions",
    "require_public",
    "simulate",
    "synthetic",
]
