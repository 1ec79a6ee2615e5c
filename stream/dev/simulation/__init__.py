"""Simulates a stream on a public table before it is opened: answers, errors and cost.

The reported errors are exact, so a simulation must never read private data; see ``require_public``.
"""
