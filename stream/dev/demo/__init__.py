"""The demo: an end-to-end run on Kafka, with answers checked against the truth."""

from stream.dev.demo.demo_report import Check, DemoReport
from stream.dev.demo.demo_run import DemoInstallation, DemoProgress, installation, run_demo

__all__ = ["Check", "DemoInstallation", "DemoProgress", "DemoReport", "installation", "run_demo"]
