"""Converts people's events from bytes to numpy columns.

Reading order: ``event_reader`` (batches), ``event_decoding`` (JSON), ``event_fields`` (values and flaws).
"""
