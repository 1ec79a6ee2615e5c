"""Converts people's events from bytes to numpy columns.

Reading order: ``event_reader`` (batches), ``event_decoding`` (JSON), ``event_fields`` (values and flaws).
"""

from stream.events.event_decoding import Events
from stream.events.event_fields import Flaw
from stream.events.event_reader import EventReader

__all__ = ["EventReader", "Events", "Flaw"]
