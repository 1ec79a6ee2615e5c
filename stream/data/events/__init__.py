"""People's events as a topic has them: bytes in, numpy columns out."""

from stream.data.events.reading import EventReader, Events, Flaw

__all__ = ["EventReader", "Events", "Flaw"]
