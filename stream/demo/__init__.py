"""The main job, run end to end on real Kafka and checked against the truth."""

from stream.demo.report import Check, Report
from stream.demo.run import Progress, run_demo

__all__ = ["Check", "Progress", "Report", "run_demo"]
