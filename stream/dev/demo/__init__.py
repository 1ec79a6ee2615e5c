"""Runs the demo end to end on Kafka, and checks its answers against the true numbers."""

from stream.dev.demo.demo_report import Check, DemoReport
from stream.dev.demo.demo_run import DemoInstallation, DemoProgress, installation, run_demo

__all__ = ["Check", "DemoInstallation", "DemoProgress", "DemoReport", "installation", "run_demo"]
