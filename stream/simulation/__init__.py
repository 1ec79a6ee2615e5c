"""What a stream would answer and cost on a public table, beside what it promises: a check before it is opened.

Errors are told against exact truths, with no noise between. So nothing here may ever read private data; ``publicness``
says which tables are taken.
"""

from stream.simulation.errors import SimulationError
from stream.simulation.measuring import Figures, Measurement
from stream.simulation.publicness import require_public
from stream.simulation.questions import read_questions
from stream.simulation.report import Ending, Report, Run
from stream.simulation.running import simulate
from stream.simulation.synthetic import LAW, synthetic

__all__ = [
    "LAW",
    "Ending",
    "Figures",
    "Measurement",
    "Report",
    "Run",
    "SimulationError",
    "read_questions",
    "require_public",
    "simulate",
    "synthetic",
]
