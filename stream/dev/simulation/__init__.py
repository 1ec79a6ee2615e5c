"""Simulates a stream on a public table before it is opened: answers, errors and cost.

The reported errors are exact, so a simulation must never read private data; see ``require_public``.
"""

from stream.dev.simulation.simulation_inputs import LAW, SimulationError, read_questions, require_public, synthetic
from stream.dev.simulation.simulation_run import (
    ErrorMeasurement,
    Figures,
    Run,
    RunEnding,
    SimulationReport,
    simulate,
)

__all__ = [
    "LAW",
    "ErrorMeasurement",
    "Figures",
    "Run",
    "RunEnding",
    "SimulationError",
    "SimulationReport",
    "read_questions",
    "require_public",
    "simulate",
    "synthetic",
]
