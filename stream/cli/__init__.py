"""The ``sotto`` command: ``app`` lists all commands; those of sources, streams and questions are in ``manage``."""

from stream.cli.app import main

__all__ = ["main"]
