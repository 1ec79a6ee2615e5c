"""The main job, run end to end on real Kafka and checked against the truth."""

from stream.demo.report import Check, Report
from stream.demo.run import Installation, Progress, installation, run_demo

__all__ = ["Check", "Installation", "Progress", "Report", "installation", "run_demo"]
