"""Streams simulated on public tables."""
