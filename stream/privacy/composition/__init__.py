"""Composition: what rounds, releases and streams cost together, in exact arithmetic."""
