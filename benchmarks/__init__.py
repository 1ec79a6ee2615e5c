"""Measures how fast Sotto is, compared with other stream processors on the same broker."""
