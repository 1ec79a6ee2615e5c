"""People's events as a topic has them: bytes in, numpy columns out."""

from stream.events.event_reader import EventReader, Events, Flaw

__all__ = ["EventReader", "Events", "Flaw"]
