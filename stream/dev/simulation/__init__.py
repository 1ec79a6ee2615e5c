"""What a stream would answer and cost on a public table, beside what it promises: a check before it is opened.

Errors are told against exact truths, with no noise between. So nothing here may ever read private data; ``publicness``
says which tables are taken.
"""

from stream.dev.simulation.simulation_inputs import LAW, read_questions, require_public, synthetic
from stream.dev.simulation.simulation_run import (
    ErrorMeasurement,
    Figures,
    Run,
    RunEnding,
    SimulationReport,
    simulate,
)
from stream.dev.simulation.true_answers import SimulationError

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
