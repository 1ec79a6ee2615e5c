"""The ``sotto`` command."""

from stream.cli.app import main

__all__ = ["main"]
