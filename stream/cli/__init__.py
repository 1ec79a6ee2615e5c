"""The ``sotto`` command: ``app`` lists all commands, whose modules are in the subfolders."""

from stream.cli.app import main

__all__ = ["main"]
