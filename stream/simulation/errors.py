"""What keeps a simulation from being made."""

from __future__ import annotations


class SimulationError(ValueError):
    """A simulation is refused, or what it was given is wrong; the message says what to do."""
