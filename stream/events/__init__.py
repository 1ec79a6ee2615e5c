"""Converts people's events from bytes to numpy columns."""

from stream.events.event_reader import EventReader, Events, Flaw

__all__ = ["EventReader", "Events", "Flaw"]
