"""Composition: exact total (ε, δ) of several rounds, releases and streams."""
