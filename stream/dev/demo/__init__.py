"""Runs the demo end to end on Kafka, and checks its answers against the true numbers."""

from stream.dev.demo.demo_installation import Check, DemoInstallation, DemoProgress, DemoReport, installation
from stream.dev.demo.demo_run import run_demo

__all__ = ["Check", "DemoInstallation", "DemoProgress", "DemoReport", "installation", "run_demo"]
